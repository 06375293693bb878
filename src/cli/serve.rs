//! placeholder until the server's interface is here
