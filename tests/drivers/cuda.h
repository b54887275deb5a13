/* Runs CUDA kernels on the CPU, to test their logic: the threads of a block are fibers, which take turns at __syncthreads. A block
 * in which some threads end while others wait is counted, for a device would hang. One block runs at a time. */

#include <cmath>
#include <ucontext.h>

#define BLOCK_THREADS 256
#define STACK_BYTES 65536
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(threads, blocks)
#define __shared__ static

struct Index {
    unsigned x;
};

static Index threadIdx, blockIdx, gridDim;
static ucontext_t scheduler, fibers[BLOCK_THREADS];
static char stacks[BLOCK_THREADS][STACK_BYTES];
static bool ended[BLOCK_THREADS];
static void (*kernel)();

extern "C" {
int diverged;
}

// (Fibers do not run at the same time.)
static inline unsigned atomicAdd(unsigned *to, unsigned added) {
    const unsigned before = *to;
    *to += added;
    return before;
}

static inline unsigned atomicMin(unsigned *to, unsigned other) {
    const unsigned before = *to;
    *to = before < other ? before : other;
    return before;
}

static inline unsigned atomicMax(unsigned *to, unsigned other) {
    const unsigned before = *to;
    *to = before > other ? before : other;
    return before;
}

static void __syncthreads() { swapcontext(&fibers[threadIdx.x], &scheduler); }

static void fiber() {
    kernel();
    ended[threadIdx.x] = true;
    swapcontext(&fibers[threadIdx.x], &scheduler);
}

static void run_blocks(unsigned blocks, void (*code)()) {
    kernel = code;
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        for (unsigned i = 0; i < BLOCK_THREADS; i++) {
            ended[i] = false;
            getcontext(&fibers[i]);
            fibers[i].uc_stack.ss_sp = stacks[i];
            fibers[i].uc_stack.ss_size = STACK_BYTES;
            fibers[i].uc_link = nullptr;
            makecontext(&fibers[i], fiber, 0);
        }
        for (unsigned waiting = BLOCK_THREADS; waiting > 0;) {
            unsigned over = 0;
            for (unsigned i = 0; i < BLOCK_THREADS; i++) {
                if (!ended[i]) {
                    threadIdx.x = i;
                    swapcontext(&scheduler, &fibers[i]);
                }
                over += ended[i];
            }
            diverged += over > 0 && over < BLOCK_THREADS;
            waiting = BLOCK_THREADS - over;
        }
    }
}
