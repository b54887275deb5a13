//! Ranges of NVTX, in a domain of their own: `nsys profile` and other tools of NVIDIA's show them beside the GPU's work.
//!
//! NVTX has no library of its own. A tool that is attached sets `NVTX_INJECTION64_PATH` to a library; a program that has ranges to show
//! loads it, and offers it tables of function pointers, into which it writes what it wants to be called. This is what NVTX's header does
//! (`nvtx3/nvtxDetail/nvtxInit.h`, version 3), for the three functions that are used here. Without a tool, a range costs a look.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;

use crate::sync::log;
use crate::sync::plain::AtomicPtr;
use crate::sync::{OnceLock, Ordering};

/// `NVTX_VERSION`.
const VERSION: u16 = 3;

/// How many callbacks each module has (`NVTX_CBID_..._SIZE`), by the module's number: none, core, CUDA, OpenCL, CUDA's runtime, core 2,
/// and synchronization. Tools ask for all of them.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MOST: usize = 16;

/// Of module `CORE2`.
const CORE2: usize = 5;
const PUSH: usize = 4;
const POP: usize = 5;
const CREATE: usize = 12;

type Slot = AtomicPtr<c_void>;

/// Where the tool writes its functions.
static SLOTS: [[Slot; MOST]; SIZES.len()] = {
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "it is the initial value of an array"
    )]
    const NONE: Slot = AtomicPtr::new(std::ptr::null_mut());
    #[expect(clippy::declare_interior_mutable_const, reason = "as above")]
    const MODULE: [Slot; MOST] = [NONE; MOST];
    [MODULE; SIZES.len()]
};

/// A module's slots as the tool sees them: their addresses, none for the number 0, and none at the end.
struct Table([*const Slot; MOST + 1]);

// SAFETY: the addresses are those of statics, which may be used on any thread.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

static TABLES: OnceLock<[Table; SIZES.len()]> = OnceLock::new();

fn tables() -> &'static [Table; SIZES.len()] {
    TABLES.get_or_init(|| {
        std::array::from_fn(|module| {
            Table(std::array::from_fn(|number| {
                match (1..SIZES[module]).contains(&number) {
                    true => &raw const SLOTS[module][number],
                    false => std::ptr::null(),
                }
            }))
        })
    })
}

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    function_table: extern "C" fn(c_int, *mut *const *const Slot, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks {
    size: size_of::<Callbacks>(),
    function_table,
};

static VERSION_INFO: VersionInfo = VersionInfo {
    size: size_of::<VersionInfo>(),
    version: VERSION as u32,
    reserved: 0,
    set_tool_version,
};

extern "C" fn set_tool_version(_: u32) {}

/// Gives the tool the table of a module; returns 0 if there is none.
extern "C" fn function_table(
    module: c_int,
    table: *mut *const *const Slot,
    size: *mut c_uint,
) -> c_int {
    let Some(module) = usize::try_from(module).ok() else {
        return 0;
    };
    let Some(own) = tables().get(module).filter(|_| SIZES[module] > 0) else {
        return 0;
    };
    // SAFETY: the tool passes places for the results, or null for what it does not ask for.
    unsafe {
        if let Some(size) = size.as_mut() {
            *size = SIZES[module] as c_uint;
        }
        if let Some(table) = table.as_mut() {
            *table = own.0.as_ptr();
        }
    }
    1
}

/// `nvtxGetExportTable`.
extern "C" fn export_table(number: u32) -> *const c_void {
    match number {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

/// `nvtxEventAttributes_t`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: c_int,
    color: u32,
    payload_type: c_int,
    reserved: c_int,
    payload: u64,
    message_type: c_int,
    message: *const c_char,
}

type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
type Create = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type Push = unsafe extern "C" fn(*mut c_void, *const Attributes) -> c_int;
type Pop = unsafe extern "C" fn(*mut c_void) -> c_int;

/// A tool that is attached.
struct Tool {
    /// What the tool calls the domain `pinfeed`.
    domain: *mut c_void,
    push: Push,
    pop: Pop,
    /// Its functions are called as long as the program runs.
    _library: libloading::Library,
}

// SAFETY: NVTX's functions may be called on any thread; the domain is a name that only the tool follows.
unsafe impl Send for Tool {}
// SAFETY: as above.
unsafe impl Sync for Tool {}

impl Tool {
    /// The tool, if one is attached. It is looked for once.
    fn get() -> Option<&'static Tool> {
        static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
        TOOL.get_or_init(Tool::attach).as_ref()
    }

    fn attach() -> Option<Tool> {
        let name = match size_of::<usize>() {
            4 => "NVTX_INJECTION32_PATH",
            _ => "NVTX_INJECTION64_PATH",
        };
        let path = std::env::var_os(name)?;
        match Tool::load(&path) {
            Ok(tool) => tool,
            Err(error) => {
                log::warn!("{name} names no library of a profiler: {error}");
                None
            }
        }
    }

    fn load(path: &std::ffi::OsStr) -> Result<Option<Tool>, libloading::Error> {
        // SAFETY: the user that set the variable wants this library to be loaded, and what it runs then.
        let library = unsafe { libloading::Library::new(path) }?;
        // SAFETY: that is the type of the function of this name.
        let initialize = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") }?;
        // SAFETY: `export_table` gives it tables of the kinds that version 3 of NVTX has, which are there for ever.
        if unsafe { initialize(export_table) } == 0 {
            return Ok(None);
        }
        let function = |number: usize| {
            let function = SLOTS[CORE2][number].load(Ordering::Acquire);
            (!function.is_null()).then_some(function)
        };
        // (A tool need not want all of them.)
        let functions = (function(CREATE), function(PUSH), function(POP));
        let (Some(create), Some(push), Some(pop)) = functions else {
            return Ok(None);
        };
        // SAFETY: the tool wrote functions of these types into the slots of these numbers.
        let (create, push, pop) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Create>(create),
                std::mem::transmute::<*mut c_void, Push>(push),
                std::mem::transmute::<*mut c_void, Pop>(pop),
            )
        };
        // SAFETY: the name is a string of C.
        let domain = unsafe { create(c"pinfeed".as_ptr()) };
        Ok(Some(Tool {
            domain,
            push,
            pop,
            _library: library,
        }))
    }
}

/// A range of this thread, until it is dropped.
pub(crate) struct Range {
    tool: Option<&'static Tool>,
    /// It ends on the thread that it began on.
    of_thread: PhantomData<*const ()>,
}

impl Range {
    /// `name` ends in a zero.
    pub(crate) fn enter(name: &'static str, payload: impl FnOnce() -> Option<u64>) -> Range {
        let tool = Tool::get();
        if let Some(tool) = tool {
            debug_assert!(name.ends_with('\0'));
            let payload = payload();
            let attributes = Attributes {
                version: VERSION,
                size: size_of::<Attributes>() as u16,
                category: 0,
                color_type: 0,
                color: 0,
                payload_type: c_int::from(payload.is_some()), // an unsigned number of 64 bits
                reserved: 0,
                payload: payload.unwrap_or(0),
                message_type: 1, // a string of C
                message: name.as_ptr().cast(),
            };
            // SAFETY: the tool's function, for the tool's domain; it copies what it wants of the attributes.
            unsafe { (tool.push)(tool.domain, &raw const attributes) };
        }
        Range {
            tool,
            of_thread: PhantomData,
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(tool) = self.tool {
            // SAFETY: as in `enter`; ranges of a thread end in the reverse order, as blocks do.
            unsafe { (tool.pop)(tool.domain) };
        }
    }
}
