/* Stands in for the CUDA driver: as much of it as is asked before a device is opened. Each answer is a macro. */

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
#define COUNT 0
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

#else

int some_other_library(void) {
    return 0;
}

#endif
