//! The derive macro of pinfeed.
