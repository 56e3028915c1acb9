// SPDX-License-Identifier: Apache-2.0
//! Connections between nodes.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// A kernel that says nothing is asked whether it is there ...
const ASK_AFTER: Duration = Duration::from_secs(10);
/// ... again and again ...
const ASK_EVERY: Duration = Duration::from_secs(5);
/// ... so often. What a node does not take in all this time ends the connection, too.
const ASK_TIMES: u32 = 4;

/// What both ends of a connection between nodes set: small messages go at once, and a
/// connection ends when the other kernel does.
///
/// A node that crashed or was killed closes nothing. Without this, what waits for a word of
/// it, as a follower of its console or a server for its next request, waits for ever.
///
/// # Errors
/// When it is no TCP connection any more.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    let limit = ASK_AFTER + ASK_EVERY * ASK_TIMES;
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ASK_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, ASK_TIMES)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn end_of_the_other_kernel_is_noticed_within_half_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(!sockopt::socket_keepalive(&stream).unwrap());
        prepare(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let asked =
            sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap() + asked, Duration::from_secs(30));
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 30_000);
    }
}
