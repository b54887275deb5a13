// The conformance suite's kernels: each waits for a time, and then touches memory.
// `ci/ptx.sh --write` makes kernels.ptx from this file.
extern "C" __global__ void fill_slowly(unsigned *words, unsigned long long count, unsigned value,
                                       unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
    for (unsigned long long i = threadIdx.x; i < count; i += blockDim.x) words[i] = value;
}

extern "C" __global__ void sum_slowly(const unsigned *words, unsigned long long count, unsigned *sum,
                                      unsigned long long nanoseconds) {
    __shared__ unsigned total;
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    unsigned mine = 0;
    for (unsigned long long i = threadIdx.x; i < count; i += blockDim.x) mine += words[i];
    atomicAdd(&total, mine);
    __syncthreads();
    if (threadIdx.x == 0) *sum = total;
}
