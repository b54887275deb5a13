/* The kernel that changes pictures, on the CPU. */

#include "cuda.h"

#include "../../src/driver/cuda/changes.cu"

static const Pass *passes;
static const Change *changes;
static unsigned long long pictures;

extern "C" void change(unsigned blocks, const Pass *given, const Change *records, unsigned long long count) {
    passes = given;
    changes = records;
    pictures = count;
    run_blocks(blocks, [] { pinfeed_change_pictures(passes, changes, pictures); });
}
