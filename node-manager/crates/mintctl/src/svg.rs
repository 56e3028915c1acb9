// SPDX-License-Identifier: Apache-2.0
//! Pictures of squares (SVG).

use std::fmt::Write;
use std::path::Path;

use mint_api::{ErrorBody, ErrorCode};

/// Colours of nodes 0, 1, …: apart from each other for every kind of colour vision.
pub const COLOURS: [&str; 8] =
    ["#8a8a8a", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];

/// Text for XML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A square with a text that shows when it is pointed at.
pub fn square(body: &mut String, (x, y): (u32, u32), side: u32, fill: &str, title: &str) {
    _ = writeln!(
        body,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" fill=\"{fill}\" \
         stroke=\"#404040\"><title>{}</title></rect>",
        escaped(title)
    );
}

/// All that was drawn, on white.
pub fn picture((width, height): (u32, u32), body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// Writes it to a file.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, picture: &str) -> Result<(), ErrorBody> {
    std::fs::write(path, picture).map_err(|error| {
        let mut body = ErrorBody::from_error(ErrorCode::Failed, &error);
        body.message = format!("cannot write {}: {}", path.display(), body.message);
        body
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_picture() {
        assert_eq!(escaped("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }
}
