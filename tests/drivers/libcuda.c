/* Stands in for the CUDA driver: as much of it as is asked before a device is opened. Each answer is a macro.
 *
 * With MAJOR and MINOR there are devices of that compute capability, as far as copies, events and the loading of kernels go.
 * Their memory is the host's, what is enqueued is done at once, and of the kernels only those do anything that gather a table's rows. Events fire when
 * they are recorded, or, while stub_holds, not before that ends. Those of one stream alone are held by stub_holds_stream, and
 * with them those of streams that wait for it. */

#ifndef NO_DRIVER

#ifndef VERSION
#define VERSION 13000
#endif
#ifndef VERSION_RESULT
#define VERSION_RESULT 0
#endif
#ifndef INIT_RESULT
#define INIT_RESULT 0
#endif
#ifndef COUNT
#ifdef MAJOR
#define COUNT 1
#else
#define COUNT 0
#endif
#endif
#ifndef COUNT_RESULT
#define COUNT_RESULT 0
#endif

int cuDriverGetVersion(int *version) {
    *version = VERSION;
    return VERSION_RESULT;
}

int cuInit(unsigned int flags) {
    return flags == 0 ? INIT_RESULT : 1;
}

int cuDeviceGetCount(int *count) {
    *count = COUNT;
    return COUNT_RESULT;
}

int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    (void)start, (void)end;
    *milliseconds = 0.5f;
    return 0;
}

#ifdef MAJOR

#include <stdlib.h>
#include <string.h>

#ifndef LOAD_RESULT
#define LOAD_RESULT 0
#endif

typedef unsigned long long address;

/* What the driver's handles point to: the context that they are of, and for events when they were recorded; whose work they
 * come after, by the number of a stream, or 0. */
struct handle {
    void *context;
    int recorded, number, after;
};

#define MOST 8
#define MOST_LOCKED 1024

/* Page-locked memory, and the context that locked it. */
static struct {
    void *memory, *context;
} locked[MOST_LOCKED];

static int contexts[MOST], functions[3];
enum { ROWS, FEW_ROWS, OTHER };
static _Thread_local void *current[MOST];
static _Thread_local int depth;
static _Thread_local int mode; /* global, as for each thread that chose none */

/* What the tests ask for: modules that were loaded, and unloaded in the context that they were loaded in. */
int stub_loaded, stub_unloaded;

/* Calls of the context and the capture mode by the thread that asks, and those of copies and events by any. */
_Thread_local int stub_turns;
int stub_works;

/* How often memory was unlocked, a stream was made to wait, and an event was asked for. */
int stub_unlocked, stub_waits, stub_queries;

/* Calls of copies and events in another context than their stream's and event's, or not in the relaxed capture mode. */
int stub_astray;

/* How many kernels were launched, and how many streams were created. */
int stub_launches, stub_streams;

/* How often an event was recorded behind all work of a context, and a context was waited for. */
int stub_everywhere, stub_synchronized, stub_recorded;

/* What the tests set: the stream of this number is captured; one is that waits for the legacy default stream; one is that no question finds,
 * and fails beside an event of the context. */
int stub_captures, stub_captures_by_default, stub_captures_unseen;

/* What the tests set: events do not fire, or those after the work of the stream that was created as this one; these calls fail. */
int stub_holds, stub_holds_stream, stub_fails_copy, stub_fails_record, stub_fails_push;

/* How many contexts lie below the current one on this thread. */
int stub_depth(void) { return depth; }

static void add(int *count) { __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST); }

static void check(struct handle *handle) {
    if (mode != 2 || handle->context != current[depth])
        add(&stub_astray);
}

static void work(void *handle) {
    add(&stub_works);
    check(handle);
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    strncpy(name, "stub", (size_t)length);
    return 0;
}

int cuDeviceGetPCIBusId(char *address, int length, int device) {
    (void)device;
    strncpy(address, "0000:3B:00.0", (size_t)length);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case 75: *value = MAJOR; break;
    case 76: *value = MINOR; break;
    case 91: *value = 1; break; /* registered memory has the host's addresses */
    default: *value = 0;
    }
    return 0;
}

int cuDevicePrimaryCtxRetain(void **out, int device) {
    *out = &contexts[device];
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return 0;
}

int cuCtxGetCurrent(void **out) {
    add(&stub_turns);
    *out = current[depth];
    return 0;
}

int cuCtxSetCurrent(void *in) {
    current[depth] = in;
    return 0;
}

int cuCtxPushCurrent_v2(void *in) {
    add(&stub_turns);
    if (stub_fails_push)
        return 201;
    current[++depth] = in;
    return 0;
}

int cuCtxPopCurrent_v2(void **out) {
    add(&stub_turns);
    if (depth == 0)
        return 201;
    *out = current[depth--];
    return 0;
}

int cuCtxGetDevice(int *device) {
    if ((int *)current[depth] < contexts || (int *)current[depth] >= contexts + MOST)
        return 201;
    *device = (int)((int *)current[depth] - contexts);
    return 0;
}

int cuCtxSynchronize(void) {
    add(&stub_synchronized);
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *other) {
    add(&stub_turns);
    int before = mode;
    mode = *other;
    *other = before;
    return 0;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = (size_t)1 << 30;
    return 0;
}

int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    struct handle *made = calloc(1, sizeof *made);
    made->context = current[depth];
    made->number = made->after = __atomic_add_fetch(&stub_streams, 1, __ATOMIC_SEQ_CST);
    *stream = made;
    return 0;
}

int cuStreamDestroy_v2(void *stream) {
    free(stream);
    return 0;
}

int cuStreamSynchronize(void *stream) {
    work(stream);
    return 0;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    work(stream);
    add(&stub_waits);
    if (((struct handle *)event)->after == stub_holds_stream && stub_holds_stream != 0)
        ((struct handle *)stream)->after = stub_holds_stream;
    return ((struct handle *)event)->recorded ? 0 : 400;
}

int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    struct handle *made = calloc(1, sizeof *made);
    made->context = current[depth];
    *event = made;
    return 0;
}

int cuEventDestroy_v2(void *event) { return cuStreamDestroy_v2(event); }

int cuEventRecord(void *event, void *stream) {
    work(stream);
    check(event);
    if (stub_fails_record)
        return 999;
    add(&stub_recorded);
    ((struct handle *)event)->recorded = 1;
    ((struct handle *)event)->after = ((struct handle *)stream)->after;
    return 0;
}

#if VERSION >= 12050
int cuCtxRecordEvent(void *context, void *event) {
    add(&stub_everywhere);
    add(&stub_works);
    check(event);
    if (context != ((struct handle *)event)->context)
        add(&stub_astray);
    if (stub_captures || stub_captures_by_default || stub_captures_unseen)
        return 900;
    ((struct handle *)event)->recorded = 1;
    ((struct handle *)event)->after = stub_holds_stream;
    return 0;
}
#endif

int cuStreamIsCapturing(void *stream, int *status) {
    add(&stub_works);
    *status = 0;
    if (stream == (void *)1) /* the legacy default stream */
        return stub_captures_by_default ? 906 : 0;
    check(stream);
    *status = stub_captures != 0 && ((struct handle *)stream)->number == stub_captures;
    return 0;
}

int cuEventQuery(void *event) {
    work(event);
    add(&stub_queries);
    return stub_holds || (stub_holds_stream != 0 && ((struct handle *)event)->after == stub_holds_stream) ? 600 : 0;
}

int cuEventSynchronize(void *event) {
    work(event);
    return 0;
}

int cuMemAlloc_v2(address *out, size_t bytes) {
    *out = (address)(size_t)aligned_alloc(512, (bytes + 511) / 512 * 512);
    return 0;
}

int cuMemFree_v2(address in) {
    free((void *)(size_t)in);
    return 0;
}

int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
    (void)bytes, (void)flags;
    for (int index = 0; index < MOST_LOCKED; index++) {
        void *none = 0;
        if (__atomic_compare_exchange_n(&locked[index].memory, &none, memory, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            locked[index].context = current[depth];
            return 0;
        }
    }
    return 2;
}

int cuMemHostUnregister(void *memory) {
    for (int index = 0; index < MOST_LOCKED; index++)
        if (locked[index].memory == memory) {
            if (mode != 2 || locked[index].context != current[depth])
                add(&stub_astray);
            add(&stub_unlocked);
            locked[index].memory = 0;
            return 0;
        }
    return 713;
}

int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream) {
    work(stream);
    if (stub_fails_copy)
        return 999;
    memcpy((void *)(size_t)to, from, bytes);
    return 0;
}

int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *stream) {
    work(stream);
    if (stub_fails_copy)
        return 999;
    memcpy((void *)(size_t)to, (void *)(size_t)from, bytes);
    return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream) {
    work(stream);
    if (stub_fails_copy)
        return 999;
    memcpy(to, (void *)(size_t)from, bytes);
    return 0;
}

int cuModuleLoadData(void **module, const void *image) {
    (void)image;
    *module = current[depth];
    __atomic_add_fetch(&stub_loaded, LOAD_RESULT == 0, __ATOMIC_SEQ_CST);
    return LOAD_RESULT;
}

int cuModuleUnload(void *module) {
    __atomic_add_fetch(&stub_unloaded, module == current[depth], __ATOMIC_SEQ_CST);
    return 0;
}

int cuModuleGetFunction(void **out, void *module, const char *name) {
    (void)module;
    *out = &functions[!strcmp(name, "pinfeed_rows") ? ROWS : !strcmp(name, "pinfeed_few_rows") ? FEW_ROWS : OTHER];
    return 0;
}

/* As in src/driver/cuda/rows.cu, for blocks in turn. */
struct column {
    const long long *numbers;
    unsigned long long count;
    const unsigned char *from;
    unsigned char *to;
    unsigned long long units, end, pieces;
    unsigned rows, shift;
};

static void gather(const long long *few, unsigned long long groups, const struct column *columns) {
    for (unsigned long long group = 0; group < groups; group++) {
        unsigned long long start = 0;
        const struct column *column = columns;
        while (group >= column->end)
            start = column++->end;
        unsigned long long first = (group - start) / column->pieces * column->rows;
        unsigned long long unit = (group - start) % column->pieces * 1024, width = column->units - unit;
        width = width < 1024 ? width : 1024;
        for (unsigned long long row = first; row < first + column->rows && row < column->count; row++) {
            long long number = (few ? few : column->numbers)[row];
            memcpy(column->to + ((row * column->units + unit) << column->shift),
                   column->from + ((number * column->units + unit) << column->shift), width << column->shift);
        }
    }
}

int cuLaunchKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    add(&stub_launches);
    if (kernel == &functions[ROWS])
        gather(NULL, *(unsigned long long *)parameters[0], parameters[1]);
    else if (kernel == &functions[FEW_ROWS])
        gather(parameters[0], *(unsigned long long *)parameters[1], parameters[2]);
    return kernel >= (void *)functions && kernel <= (void *)&functions[OTHER] ? 0 : 400;
}

int cuGetErrorName(int code, const char **name) {
    (void)code;
    *name = "STUB";
    return 0;
}

int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

#endif

#else

int some_other_library(void) {
    return 0;
}

#endif
