//! The log, for threads that may hold locks.
//!
//! The logger is the program's code: it may give memory back, or ask a loader how it is doing. So a line is handed to it when the calling
//! thread holds no lock of ours: later, if it holds one now.

use super::without_locks;

/// A line of the log.
pub(crate) struct Line {
    pub(crate) level: ::log::Level,
    pub(crate) module: &'static str,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
    pub(crate) text: String,
}

impl Line {
    #[cold]
    pub(crate) fn say(self) {
        without_locks(move || {
            let mut record = ::log::Record::builder();
            record.level(self.level).target(self.module);
            record.module_path_static(Some(self.module));
            record.file_static(Some(self.file)).line(Some(self.line));
            ::log::logger().log(&record.args(format_args!("{}", self.text)).build());
        });
    }
}

macro_rules! say {
    ($level:ident, $($text:tt)+) => {
        if ::log::Level::$level <= ::log::STATIC_MAX_LEVEL && ::log::Level::$level <= ::log::max_level() {
            $crate::sync::log::Line {
                level: ::log::Level::$level,
                module: module_path!(),
                file: file!(),
                line: line!(),
                text: format!($($text)+),
            }
            .say();
        }
    };
}

macro_rules! say_error { ($($text:tt)+) => { $crate::sync::log::say!(Error, $($text)+) }; }
macro_rules! say_warn { ($($text:tt)+) => { $crate::sync::log::say!(Warn, $($text)+) }; }
macro_rules! say_debug { ($($text:tt)+) => { $crate::sync::log::say!(Debug, $($text)+) }; }

pub(crate) use {say, say_debug as debug, say_error as error, say_warn as warn};
