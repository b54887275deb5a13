/* Stands in for the CUDA driver: as much of it as is asked before a device is opened. Each answer is a macro.
 *
 * With MAJOR and MINOR there is a device of that compute capability, as far as copies, events and the loading of kernels go.
 * Its memory is the host's, what is enqueued is done at once, and a kernel that is launched does nothing. */

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
    (void)milliseconds, (void)start, (void)end;
    return 999;
}

#ifdef MAJOR

#include <stdlib.h>
#include <string.h>

#ifndef LOAD_RESULT
#define LOAD_RESULT 0
#endif

typedef unsigned long long address;

static int context, function;
static _Thread_local void *current[8];
static _Thread_local int depth;

/* What the tests ask for: modules that were loaded, and unloaded in the context that they were loaded in. */
int stub_loaded, stub_unloaded;

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
    (void)device;
    *out = &context;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return 0;
}

int cuCtxGetCurrent(void **out) {
    *out = current[depth];
    return 0;
}

int cuCtxSetCurrent(void *in) {
    current[depth] = in;
    return 0;
}

int cuCtxPushCurrent_v2(void *in) {
    current[++depth] = in;
    return 0;
}

int cuCtxPopCurrent_v2(void **out) {
    *out = current[depth--];
    return 0;
}

int cuCtxGetDevice(int *device) {
    *device = 0;
    return 0;
}

int cuCtxSynchronize(void) { return 0; }

int cuThreadExchangeStreamCaptureMode(int *mode) {
    (void)mode;
    return 0;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = (size_t)1 << 30;
    return 0;
}

int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    *stream = malloc(1);
    return 0;
}

int cuStreamDestroy_v2(void *stream) {
    free(stream);
    return 0;
}

int cuStreamSynchronize(void *stream) {
    (void)stream;
    return 0;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)stream, (void)event, (void)flags;
    return 0;
}

int cuEventCreate(void **event, unsigned flags) { return cuStreamCreate(event, flags); }

int cuEventDestroy_v2(void *event) { return cuStreamDestroy_v2(event); }

int cuEventRecord(void *event, void *stream) {
    (void)event, (void)stream;
    return 0;
}

int cuEventQuery(void *event) {
    (void)event;
    return 0;
}

int cuEventSynchronize(void *event) {
    (void)event;
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
    (void)memory, (void)bytes, (void)flags;
    return 0;
}

int cuMemHostUnregister(void *memory) {
    (void)memory;
    return 0;
}

int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    memcpy((void *)(size_t)to, from, bytes);
    return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream) {
    (void)stream;
    memcpy(to, (void *)(size_t)from, bytes);
    return 0;
}

int cuModuleLoadData(void **module, const void *image) {
    (void)image;
    *module = &stub_loaded;
    __atomic_add_fetch(&stub_loaded, LOAD_RESULT == 0, __ATOMIC_SEQ_CST);
    return LOAD_RESULT;
}

int cuModuleUnload(void *module) {
    int right = module == &stub_loaded && current[depth] == &context;
    __atomic_add_fetch(&stub_unloaded, right, __ATOMIC_SEQ_CST);
    return 0;
}

int cuModuleGetFunction(void **out, void *module, const char *name) {
    (void)module, (void)name;
    *out = &function;
    return 0;
}

int cuLaunchKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)parameters, (void)extra;
    return kernel == &function ? 0 : 400;
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
