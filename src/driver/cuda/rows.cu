// Gathers rows of tables in device memory: row i of a target is row numbers[i] of its column.
// `ci/ptx.sh --write` makes rows.ptx from this file.
//
// A block takes a group of short rows, or a piece of a long one, of one column. It reads the group's numbers once, together:
// they lie in page-locked host memory, a microsecond away. Columns may be of one batch, which has one list, or of several.
#define THREADS 256
#define PIECE_UNITS 1024ull // of a row; the host counts with it too
#define COLUMNS 8

struct Column {
    const long long *numbers;
    unsigned long long count;
    const unsigned char *from;
    unsigned char *to;
    unsigned long long units;  // in a row, of 1 << shift bytes each
    unsigned long long end;    // the number of groups in this column and those before
    unsigned long long pieces; // in a row
    unsigned rows;             // in a group
    unsigned shift;
};

struct Columns {
    Column column[COLUMNS];
};

struct Numbers {
    long long number[THREADS];
};

// `few`: the numbers of all columns, if they are arguments.
static __device__ __forceinline__ void gather(const long long *few, unsigned long long groups, const Columns &columns,
                                              long long *chosen) {
    for (unsigned long long group = blockIdx.x; group < groups; group += gridDim.x) {
        Column column = columns.column[0];
        unsigned long long start = 0;
#pragma unroll
        for (int next = 1; next < COLUMNS; next++) {
            if (group >= columns.column[next - 1].end) {
                start = columns.column[next - 1].end;
                column = columns.column[next];
            }
        }
        const long long *numbers = few ? few : column.numbers;
        const unsigned long long first = (group - start) / column.pieces * column.rows;
        const unsigned long long unit = (group - start) % column.pieces * PIECE_UNITS;
        const unsigned count = column.count - first < column.rows ? (unsigned)(column.count - first) : column.rows;
        const unsigned width = column.units - unit < PIECE_UNITS ? (unsigned)(column.units - unit) : (unsigned)PIECE_UNITS;
        __syncthreads(); // the numbers of the group before are no longer read
        if (threadIdx.x < count) chosen[threadIdx.x] = numbers[first + threadIdx.x];
        __syncthreads();
        for (unsigned i = threadIdx.x; i < count * width; i += THREADS) {
            const unsigned row = i / width;
            const unsigned long long at = unit + (i - row * width);
            const unsigned char *from = column.from + ((chosen[row] * column.units + at) << column.shift);
            unsigned char *to = column.to + (((first + row) * column.units + at) << column.shift);
            switch (column.shift) {
                case 4: *(uint4 *)to = *(const uint4 *)from; break;
                case 3: *(uint2 *)to = *(const uint2 *)from; break;
                case 2: *(unsigned *)to = *(const unsigned *)from; break;
                case 1: *(unsigned short *)to = *(const unsigned short *)from; break;
                default: *to = *from;
            }
        }
    }
}

// Each column has a list in memory that the device reads.
extern "C" __global__ void pinfeed_rows(unsigned long long groups, const Columns columns) {
    __shared__ long long chosen[THREADS];
    gather(nullptr, groups, columns, chosen);
}

// The numbers are arguments: few, or in memory that the device does not reach.
extern "C" __global__ void pinfeed_few_rows(const Numbers numbers, unsigned long long groups, const Columns columns) {
    __shared__ long long chosen[THREADS];
    gather(numbers.number, groups, columns, chosen);
}
