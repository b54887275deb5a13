//! Keeps a GPU fed.
