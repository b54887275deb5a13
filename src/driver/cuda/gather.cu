// Gathers scattered rows of page-locked host memory: row i comes from table[i], a host address that the device can read
// directly. `ci/ptx.sh --write` makes gather.ptx from this file.
//
// Blocks take pieces of 64 KiB in turn. Each thread keeps four 16-byte loads in flight, because a load over the link
// takes microseconds. Rows that are not aligned to 16 bytes are copied byte by byte.
#define PIECE 65536ull

extern "C" __global__ void pinfeed_gather(const unsigned char *const *table, unsigned long long rows,
                                          unsigned long long row_bytes, unsigned char *to) {
    const unsigned long long pieces = (row_bytes + PIECE - 1) / PIECE;
    for (unsigned long long item = blockIdx.x; item < rows * pieces; item += gridDim.x) {
        const unsigned long long row = item / pieces, start = item % pieces * PIECE;
        const unsigned long long bytes = row_bytes - start < PIECE ? row_bytes - start : PIECE;
        const unsigned char *from = table[row] + start;
        unsigned char *target = to + row * row_bytes + start;
        if ((((unsigned long long)from | (unsigned long long)target | bytes) & 15) == 0) {
            const uint4 *in = (const uint4 *)from;
            uint4 *out = (uint4 *)target;
            const unsigned units = (unsigned)(bytes / 16), step = blockDim.x;
            unsigned i = threadIdx.x;
            for (; i + 3 * step < units; i += 4 * step) {
                const uint4 a = in[i], b = in[i + step], c = in[i + 2 * step], d = in[i + 3 * step];
                out[i] = a;
                out[i + step] = b;
                out[i + 2 * step] = c;
                out[i + 3 * step] = d;
            }
            for (; i < units; i += step) out[i] = in[i];
        } else {
            for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) target[i] = from[i];
        }
    }
}
