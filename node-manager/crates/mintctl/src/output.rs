// SPDX-License-Identifier: Apache-2.0
//! Tables for people, and times.

use std::io::{self, Write};

use jiff::Timestamp;

/// A table: columns as wide as their widest cell.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with that heading.
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints it to standard output.
    ///
    /// # Errors
    /// When that is closed.
    pub fn print(&self) -> io::Result<()> {
        io::stdout().lock().write_all(self.text().as_bytes())
    }

    /// As text: a line a row.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:<width$}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Prints text and a newline to standard output.
///
/// # Errors
/// When that is closed.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")
}

/// Prints a JSON document to standard output.
///
/// # Errors
/// When that is closed.
pub fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    let text = serde_json::to_string(value).map_err(io::Error::other)?;
    print(&text)
}

/// A time in words.
///
/// # Arguments
/// * `at_s` - seconds since 1970.
pub fn time(at_s: u64) -> String {
    let at = i64::try_from(at_s).ok().and_then(|at| Timestamp::from_second(at).ok());
    at.map_or_else(|| format!("{at_s} s"), |at| at.to_string())
}

/// What stands where there is nothing to say.
pub fn or_dash(text: impl Into<String>) -> String {
    let text = text.into();
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        let mut table = Table::new(&["ID", "NAME", "X"]);
        table.row(["10".into(), "web".into(), String::new()]);
        assert_eq!(table.text(), "ID  NAME  X\n10  web\n");
    }
}
