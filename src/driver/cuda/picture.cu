// Makes rows of a batch of the planes that a hardware decoder wrote: upsamples chroma and converts colours as libjpeg-turbo does,
// then crops, resamples and flips as fast_image_resize does, byte for byte (src/picture/ is the same in plain code).
// `ci/ptx.sh --write` makes picture.ptx from this file; without fused multiply-add, so that each product is rounded as on the CPU.
//
// "prepare" computes the weights of both axes of each picture, one block for each axis, and puts a few known bytes into its planes.
// It must be done before the pictures are decoded. "draw" makes the rows, and reports planes in which the known bytes are all still
// there: the decoder skipped that picture.
//
// A block of "draw" makes tiles of 32 x 16 pixels, a piece of the source at a time, as large as fits the shared memory. Its pixels are converted
// to colours once; the first pass of the filter makes of them what the second pass reads; each thread adds that to the sums of its two pixels,
// and the next piece follows. A piece is at least one pixel wide: `Drawing::is_sound` bounds what a tile reads along the axis of the first pass.
//
// What it takes is registers: it waits for memory most of the time, and the more blocks a multiprocessor has, the less. So the picture lies in
// shared memory, and what is rare is not inlined.

typedef unsigned char Byte;
typedef unsigned long long Address;

#define THREADS 256
#define BLOCKS 5 // of a multiprocessor: with fewer, it waits for memory; with more, registers do not suffice
#define TILE_WIDTH 32
#define TILE_HEIGHT 16
#define BETWEEN 2048 // pixels between the passes
#define COLOURS 4096 // pixels of the source
#define KNOWN 16     // bytes in each plane
#define WHOLE_PRECISION 14

enum { GREY, NONE, COLUMNS, BOTH, ROWS };
enum { BILINEAR, BICUBIC };

// As `Picture` in driver/kernels/picture.rs.
struct Picture {
    Address planes[3];
    Address to;         // the row's first byte
    Address status;     // an unsigned: 1, and 2 << n for each plane that was not written
    Address weights[2]; // across and down
    double window[4];   // left, top, width, height, from the bounds' corner
    unsigned pitch[3];
    unsigned sampling;
    unsigned source[2]; // width, height
    unsigned bounds[4]; // left, top, width, height
    unsigned place[4];
    unsigned size[2];
    unsigned taps[2];
    unsigned filter;
    unsigned flip; // 1: left and right, 2: top and bottom
    unsigned fill; // red, green, blue, from the lowest byte
    unsigned unused;
};

// The weights of an axis begin with their precision, in 16 bytes. A span for each pixel follows, and then its weights.
struct Span {
    unsigned start, count;
};

static __device__ __forceinline__ const Span *spans(Address weights) { return (const Span *)(weights + 16); }

static __device__ __forceinline__ const short *factors(Address weights, unsigned out) {
    return (const short *)(weights + 16 + (Address)out * sizeof(Span));
}

static __device__ __forceinline__ unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }

// Half away from zero, as `f64::round`. (The values are small.)
static __device__ __forceinline__ int rounded(double value) {
    const double size = value < 0 ? -value : value;
    const int whole = (int)size;
    const int near = size - whole >= 0.5 ? whole + 1 : whole;
    return value < 0 ? -near : near;
}

static __device__ __forceinline__ double weigh(unsigned filter, double x) {
    const double a = -0.5;
    x = x < 0 ? -x : x;
    if (filter == BILINEAR) return x < 1.0 ? 1.0 - x : 0.0;
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    return x < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * a : 0.0;
}

// One axis of a picture.
struct Axis {
    double start, scale, radius, narrowed;
    unsigned inside, out, taps, filter;

    __device__ Axis(const Picture &picture, unsigned axis) {
        start = picture.window[axis];
        const double end = start + picture.window[2 + axis];
        inside = picture.bounds[2 + axis];
        out = picture.place[2 + axis];
        taps = picture.taps[axis];
        filter = picture.filter;
        scale = (end - start) / (double)out;
        const double wide = scale < 1.0 ? 1.0 : scale;
        radius = (filter == BILINEAR ? 1.0 : 2.0) * wide;
        narrowed = 1.0 / wide;
    }

    // The span of a pixel, and the sum of its weights.
    __device__ Span span(unsigned at, double *center, double *sum) const {
        const double middle = start + ((double)at + 0.5) * scale;
        const double low = middle - radius, high = ceil(middle + radius);
        const unsigned first = low > 0.0 ? (unsigned)low : 0;
        unsigned end = high < (double)inside ? (unsigned)high : inside;
        *center = middle - 0.5;
        unsigned begin = first;
        double all = 0.0;
        for (unsigned x = first; x < end; x++) {
            const double weight = weigh(filter, ((double)x - *center) * narrowed);
            if (x == begin && weight == 0.0)
                begin++;
            else
                all += weight;
        }
        while (end > begin && weigh(filter, ((double)(end - 1) - *center) * narrowed) == 0.0) end--;
        *sum = all;
        const Span span = {begin, smaller(end - begin, taps)};
        return span;
    }

    __device__ double weight(unsigned x, double center, double sum) const {
        const double weight = weigh(filter, ((double)x - center) * narrowed);
        return sum != 0.0 ? weight / sum : weight;
    }
};

static __device__ void prepare_axis(const Picture &picture, unsigned number, double *most) {
    const Address weights = picture.weights[number];
    const unsigned out = picture.place[2 + number];
    Span *const to_spans = (Span *)spans(weights);
    short *const to_factors = (short *)factors(weights, out);
    // One tap: the pixels are taken as they are.
    if (picture.taps[number] == 1) {
        for (unsigned at = threadIdx.x; at < out; at += THREADS) {
            const Span span = {(unsigned)picture.window[number] + at, 1};
            to_spans[at] = span;
            to_factors[at] = 1 << WHOLE_PRECISION;
        }
        if (threadIdx.x == 0) *(unsigned *)weights = WHOLE_PRECISION;
        return;
    }
    const Axis axis(picture, number);
    // The largest weight of the axis says how many bits all of them have.
    double largest = 0.0;
    for (unsigned at = threadIdx.x; at < out; at += THREADS) {
        double center, sum;
        const Span span = axis.span(at, &center, &sum);
        to_spans[at] = span;
        for (unsigned x = span.start; x < span.start + span.count; x++) {
            const double weight = axis.weight(x, center, sum);
            largest = weight > largest ? weight : largest;
        }
    }
    most[threadIdx.x] = largest;
    for (unsigned step = THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step && most[threadIdx.x + step] > most[threadIdx.x]) most[threadIdx.x] = most[threadIdx.x + step];
    }
    __syncthreads();
    largest = most[0];
    unsigned precision = 0;
    while (precision < 21 && rounded(largest * (double)(2u << precision)) < 32768) precision++;
    const double scale = (double)(1u << precision);
    for (unsigned at = threadIdx.x; at < out; at += THREADS) {
        double center, sum;
        const Span span = axis.span(at, &center, &sum);
        short *const to = to_factors + (Address)at * axis.taps;
        for (unsigned tap = 0; tap < span.count; tap++) to[tap] = (short)rounded(axis.weight(span.start + tap, center, sum) * scale);
    }
    if (threadIdx.x == 0) *(unsigned *)weights = precision;
}

static __device__ __forceinline__ unsigned side(const Picture &picture, unsigned plane, unsigned axis) {
    const unsigned whole = picture.source[axis], sampling = picture.sampling;
    const bool half = axis == 0 ? sampling == COLUMNS || sampling == BOTH : sampling == ROWS || sampling == BOTH;
    return plane > 0 && half ? (whole + 1) / 2 : whole;
}

static __device__ __forceinline__ unsigned planes_of(const Picture &picture) { return picture.sampling == GREY ? 1 : 3; }

// How many bytes of a plane are known, and where and what they are.
static __device__ __forceinline__ unsigned known_bytes(const Picture &picture, unsigned plane) {
    const unsigned width = side(picture, plane, 0), height = side(picture, plane, 1);
    return width >= KNOWN || height >= KNOWN ? KNOWN : smaller(KNOWN, width * height);
}

static __device__ __forceinline__ Byte *known_place(const Picture &picture, unsigned plane, unsigned number) {
    const unsigned width = side(picture, plane, 0);
    return (Byte *)picture.planes[plane] + (Address)(number / width) * picture.pitch[plane] + number % width;
}

static __device__ __forceinline__ Byte known(unsigned plane, unsigned number) {
    return (Byte)((number + 16 * plane + 1) * 0x9E3779B1u >> 24);
}

extern "C" __global__ void pinfeed_prepare_pictures(const Picture *pictures, unsigned long long count) {
    __shared__ double most[THREADS];
    for (unsigned long long item = blockIdx.x; item < 2 * count; item += gridDim.x) {
        const Picture &picture = pictures[item / 2];
        const unsigned axis = (unsigned)(item % 2);
        __syncthreads(); // `most` of the axis before is no longer read
        if (picture.place[2] > 0 && picture.place[3] > 0) prepare_axis(picture, axis, most);
        const unsigned plane = threadIdx.x / KNOWN, number = threadIdx.x % KNOWN;
        if (axis == 0 && plane < planes_of(picture) && number < known_bytes(picture, plane))
            *known_place(picture, plane, number) = known(plane, number);
    }
}

// The planes of a picture, for one thread.
struct Source {
    const Byte *planes[3];
    unsigned pitch[3];
    unsigned sampling, left, top, last_column;
    unsigned chroma_width, chroma_height;

    __device__ Source(const Picture &picture) {
        for (int plane = 0; plane < 3; plane++) {
            planes[plane] = (const Byte *)picture.planes[plane];
            pitch[plane] = picture.pitch[plane];
        }
        sampling = picture.sampling;
        left = picture.bounds[0];
        last_column = picture.source[0] - 1;
        top = picture.bounds[1];
        chroma_width = side(picture, 1, 0);
        chroma_height = side(picture, 1, 1);
    }

    __device__ __forceinline__ int at(int plane, unsigned x, unsigned y) const {
        return planes[plane][(Address)y * pitch[plane] + x];
    }

    // Three quarters of the nearer, and one quarter of the farther, in each direction: libjpeg's "fancy upsampling" (jdsample.c).
    __device__ __forceinline__ int chroma(int plane, unsigned x, unsigned y) const {
        const bool across = sampling == COLUMNS || sampling == BOTH, down = sampling == ROWS || sampling == BOTH;
        const unsigned column = across ? x / 2 : x, row = down ? y / 2 : y;
        if (sampling == NONE || (across && chroma_width <= 2)) return at(plane, column, row);
        const unsigned odd_x = x % 2, odd_y = y % 2;
        const unsigned other_column = odd_x ? smaller(column + 1, chroma_width - 1) : column - (column > 0);
        const unsigned other_row = odd_y ? smaller(row + 1, chroma_height - 1) : row - (row > 0);
        if (!down) return (3 * at(plane, column, row) + at(plane, other_column, row) + 1 + (int)odd_x) >> 2;
        const int near = 3 * at(plane, column, row) + at(plane, column, other_row);
        if (!across) return (near + 1 + (int)odd_y) >> 2;
        const int far = 3 * at(plane, other_column, row) + at(plane, other_column, other_row);
        return (3 * near + far + 8 - (int)odd_x) >> 4;
    }

    // The red, green and blue of a pixel within the bounds, from the lowest byte: as libjpeg converts colours (jdcolor.c).
    __device__ __forceinline__ unsigned colours(int luma, int blue, int red) const {
        const int half = 1 << 15;
        blue -= 128;
        red -= 128;
        const int added[3] = {91881 * red + half, -22554 * blue - 46802 * red + half, 116130 * blue + half};
        unsigned all = 0;
        for (int channel = 0; channel < 3; channel++) {
            const int value = luma + (added[channel] >> 16);
            all |= (unsigned)(value < 0 ? 0 : value > 255 ? 255 : value) << 8 * channel;
        }
        return all;
    }

    __device__ __forceinline__ unsigned pixel(unsigned x, unsigned y) const {
        x += left;
        y += top;
        const int luma = at(0, x, y);
        return sampling == GREY ? (unsigned)luma * 0x010101u : colours(luma, chroma(1, x, y), chroma(2, x, y));
    }

    // Whether `four` may be asked.
    __device__ __forceinline__ bool has_fours() const { return sampling == BOTH && chroma_width > 2; }

    // Four pixels of a row, from a column of the picture on that is a multiple of 4: they share the chroma between them. (`chroma` is the same for
    // one.) Pixels behind the picture's last column are made of what is there, and nobody uses them.
    __device__ __forceinline__ void four(unsigned x, unsigned y, unsigned made[4]) const {
        const unsigned column = x / 2, end = chroma_width - 1;
        const unsigned columns[4] = {column - (column > 0), column, smaller(column + 1, end), smaller(column + 2, end)};
        const unsigned row = y / 2, other_row = y % 2 ? smaller(row + 1, chroma_height - 1) : row - (row > 0);
        int luma[4], near[2][4];
        for (int i = 0; i < 4; i++) luma[i] = at(0, smaller(x + i, last_column), y);
        for (int plane = 0; plane < 2; plane++)
            for (int i = 0; i < 4; i++) near[plane][i] = 3 * at(1 + plane, columns[i], row) + at(1 + plane, columns[i], other_row);
        for (int i = 0; i < 4; i++) {
            const int own = 1 + i / 2, other = i % 2 ? own + 1 : own - 1, half = 8 - i % 2;
            made[i] = colours(luma[i], (3 * near[0][own] + near[0][other] + half) >> 4, (3 * near[1][own] + near[1][other] + half) >> 4);
        }
    }
};

static __device__ __forceinline__ Byte clipped(int sum, unsigned precision) {
    const int value = sum >> precision;
    return (Byte)(value < 0 ? 0 : value > 255 ? 255 : value);
}

// What some pixels of an axis read: from the first to the one behind the last. All threads of the block ask, for two axes. (Spans of neighbours
// need not ascend.)
static __device__ void reads(const Span *const axes[2], const unsigned from[2], const unsigned count[2], unsigned (*range)[2]) {
    const unsigned axis = threadIdx.x / TILE_WIDTH, at = threadIdx.x % TILE_WIDTH;
    __syncthreads(); // the ranges before are no longer read
    if (axis < 2 && at == 0) {
        range[axis][0] = 0xFFFFFFFFu;
        range[axis][1] = 0;
    }
    __syncthreads();
    if (axis < 2 && at < count[axis]) {
        const Span span = axes[axis][from[axis] + at];
        atomicMin(&range[axis][0], span.start);
        atomicMax(&range[axis][1], span.start + span.count);
    }
    __syncthreads();
}

// Whole quotients of small numbers.
static __device__ __forceinline__ unsigned quotient(unsigned dividend, float reciprocal) {
    return (unsigned)(((float)dividend + 0.5f) * reciprocal);
}

static __device__ void put(const Picture &picture, unsigned x, unsigned y, Byte red, Byte green, Byte blue) {
    if (picture.flip & 1) x = picture.size[0] - 1 - x;
    if (picture.flip & 2) y = picture.size[1] - 1 - y;
    Byte *const to = (Byte *)picture.to + ((Address)y * picture.size[0] + x) * 3;
    to[0] = red;
    to[1] = green;
    to[2] = blue;
}

struct Shared {
    Picture picture;
    unsigned colours[COLOURS]; // red, green, blue, from the lowest byte
    Byte between[BETWEEN][3];
    unsigned range[2][2];
};

// Converts a piece of the source's pixels: from (x, y) of the bounds on, `across` x `down` of them.
static __device__ __forceinline__ void convert(const Source &source, unsigned x, unsigned y, unsigned across, unsigned down, unsigned *to) {
    if (!source.has_fours()) {
        const float reciprocal = 1.0f / (float)across;
#pragma unroll 1
        for (unsigned i = threadIdx.x; i < across * down; i += THREADS) {
            const unsigned row = quotient(i, reciprocal);
            to[i] = source.pixel(x + i - row * across, y + row);
        }
        return;
    }
    const unsigned begin = source.left + x, skipped = begin % 4, fours = (skipped + across + 3) / 4;
    const float reciprocal = 1.0f / (float)fours;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < fours * down; i += THREADS) {
        const unsigned row = quotient(i, reciprocal), at = 4 * (i - row * fours);
        unsigned made[4];
        source.four(begin - skipped + at, source.top + y + row, made);
        for (unsigned own = 0; own < 4; own++) {
            const unsigned column = at + own - skipped; // (or a large number)
            if (column < across) to[row * across + column] = made[own];
        }
    }
}

// Makes the pixels from (left, top) on, width x height of them, of the picture's place. FIRST is the axis of the first pass.
template <int FIRST> static __device__ __forceinline__ void draw_tile(unsigned left, unsigned top, unsigned width, unsigned height, Shared &shared) {
    const int SECOND = 1 - FIRST;
    const Picture &picture = shared.picture;
    // Along the first axis the tile has `lines`, which read `depth` pixels, and a piece has `piece` pixels of the source along the second.
    const unsigned lines = FIRST == 0 ? width : height;
    const unsigned first_at = FIRST == 0 ? left : top, second_at = FIRST == 0 ? top : left;
    const Span *const axes[2] = {spans(picture.weights[FIRST]), spans(picture.weights[SECOND])};
    const unsigned from_each[2] = {first_at, second_at}, count_each[2] = {lines, FIRST == 0 ? height : width};
    reads(axes, from_each, count_each, shared.range);
    const unsigned first_begin = shared.range[0][0], depth = shared.range[0][1] - first_begin;
    const unsigned begin = shared.range[1][0], end = shared.range[1][1];
    const unsigned most = BETWEEN / (FIRST == 0 ? TILE_WIDTH : TILE_HEIGHT);
    const unsigned piece = depth > 0 ? smaller(most, COLOURS / depth) : most;

    const unsigned precision = *(const unsigned *)picture.weights[SECOND];
    int sums[2][3];
    for (int own = 0; own < 2; own++)
        for (int channel = 0; channel < 3; channel++) sums[own][channel] = 1 << (precision - 1);
#pragma unroll 1
    for (unsigned from = begin; from < end; from += piece) {
        const unsigned count = smaller(piece, end - from);
        const unsigned across = FIRST == 0 ? depth : count; // of the piece's rows
        __syncthreads(); // the piece before is no longer read
        if (FIRST == 0)
            convert(Source(picture), first_begin, from, depth, count, shared.colours);
        else
            convert(Source(picture), from, first_begin, count, depth, shared.colours);
        __syncthreads();
        // Neighbouring threads take neighbouring columns.
        {
            const Address weights_of = picture.weights[FIRST];
            const short *const all_weights = factors(weights_of, picture.place[2 + FIRST]);
            const unsigned taps = picture.taps[FIRST], precision = *(const unsigned *)weights_of;
            const unsigned columns = FIRST == 0 ? lines : count;
            const float reciprocal = 1.0f / (float)columns;
#pragma unroll 1
            for (unsigned i = threadIdx.x; i < count * lines; i += THREADS) {
                const unsigned row = quotient(i, reciprocal), column = i - row * columns;
                const unsigned line = FIRST == 0 ? column : row, at = FIRST == 0 ? row : column;
                const Span span = spans(weights_of)[first_at + line];
                const short *const weights = all_weights + (first_at + line) * taps;
                int made[3] = {1 << (precision - 1), 1 << (precision - 1), 1 << (precision - 1)};
                const unsigned place = span.start - first_begin;
                const unsigned *from_colours = shared.colours + (FIRST == 0 ? at * across + place : place * across + at);
#pragma unroll 1
                for (unsigned tap = 0; tap < span.count; tap++) {
                    const unsigned colours = from_colours[FIRST == 0 ? tap : tap * across];
                    const int weight = weights[tap];
                    for (int channel = 0; channel < 3; channel++) made[channel] += (int)(colours >> 8 * channel & 255) * weight;
                }
                for (int channel = 0; channel < 3; channel++) shared.between[line * most + at][channel] = clipped(made[channel], precision);
            }
        }
        __syncthreads();
        const Address weights_of = picture.weights[SECOND];
        const unsigned taps = picture.taps[SECOND];
        for (int own = 0; own < 2; own++) {
            const unsigned i = threadIdx.x + own * THREADS, x = i % TILE_WIDTH, y = i / TILE_WIDTH;
            if (x >= width || y >= height) continue;
            const unsigned line = FIRST == 0 ? x : y, out = second_at + (FIRST == 0 ? y : x);
            const Span span = spans(weights_of)[out];
            const short *const weights = factors(weights_of, picture.place[2 + SECOND]) + out * taps;
            const unsigned low = span.start > from ? span.start : from;
            const unsigned high = smaller(span.start + span.count, from + count);
#pragma unroll 1
            for (unsigned at = low; at < high; at++) {
                const int weight = weights[at - span.start];
                for (int channel = 0; channel < 3; channel++) sums[own][channel] += shared.between[line * most + (at - from)][channel] * weight;
            }
        }
    }
    for (int own = 0; own < 2; own++) {
        const unsigned i = threadIdx.x + own * THREADS, x = i % TILE_WIDTH, y = i / TILE_WIDTH;
        if (x < width && y < height)
            put(picture, picture.place[0] + left + x, picture.place[1] + top + y, clipped(sums[own][0], precision),
                clipped(sums[own][1], precision), clipped(sums[own][2], precision));
    }
}

// Reports planes that the decoder did not write. (What is `static` and not inlined would have another name in each build.)
extern "C" __device__ __noinline__ void pinfeed_report_planes(const Picture &picture) {
    unsigned status = 1;
    for (unsigned plane = 0; plane < planes_of(picture); plane++) {
        bool is_known = true;
        for (unsigned number = 0; number < known_bytes(picture, plane); number++)
            is_known = is_known && *known_place(picture, plane, number) == known(plane, number);
        if (is_known) status |= 2u << plane;
    }
    *(unsigned *)picture.status = status;
}

// Each picture has at most `tiles` tiles, over all of its row.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pinfeed_draw_pictures(const Picture *pictures, unsigned long long count, unsigned long long tiles) {
    __shared__ Shared shared;
    const unsigned each = (unsigned)tiles, all = (unsigned)count * each;
    for (unsigned item = blockIdx.x; item < all; item += gridDim.x) {
        const Picture &picture = shared.picture;
        __syncthreads(); // the picture before is no longer read
        for (unsigned word = threadIdx.x; word < sizeof(Picture) / 4; word += THREADS)
            ((unsigned *)&shared.picture)[word] = ((const unsigned *)(pictures + item / each))[word];
        __syncthreads();
        const unsigned tile = item % each;
        const unsigned across = (picture.size[0] + TILE_WIDTH - 1) / TILE_WIDTH;
        if (tile == 0 && threadIdx.x == 0) pinfeed_report_planes(picture);
        // Tiles are of the whole row, and the place's part of each is drawn.
        const unsigned down = tile / across;
        if (down * TILE_HEIGHT >= picture.size[1]) continue;
        const unsigned left = tile % across * TILE_WIDTH, top = down * TILE_HEIGHT;
        const unsigned right = smaller(left + TILE_WIDTH, picture.size[0]), bottom = smaller(top + TILE_HEIGHT, picture.size[1]);
        const unsigned place_right = picture.place[0] + picture.place[2], place_bottom = picture.place[1] + picture.place[3];
        const unsigned x = left > picture.place[0] ? left : picture.place[0], y = top > picture.place[1] ? top : picture.place[1];
        const unsigned end_x = smaller(right, place_right), end_y = smaller(bottom, place_bottom);
        const bool shows = x < end_x && y < end_y;
        if (!shows || end_x - x < right - left || end_y - y < bottom - top) {
            for (unsigned i = threadIdx.x; i < TILE_WIDTH * TILE_HEIGHT; i += THREADS) {
                const unsigned column = left + i % TILE_WIDTH, row = top + i / TILE_WIDTH;
                const bool is_outside = !shows || column < x || column >= end_x || row < y || row >= end_y;
                if (column < right && row < bottom && is_outside)
                    put(picture, column, row, (Byte)picture.fill, (Byte)(picture.fill >> 8), (Byte)(picture.fill >> 16));
            }
        }
        if (!shows) continue;
        // The filter that overshoots begins across, and the other down: what the first pass makes is rounded.
        if (picture.filter == BICUBIC)
            draw_tile<0>(x - picture.place[0], y - picture.place[1], end_x - x, end_y - y, shared);
        else
            draw_tile<1>(x - picture.place[0], y - picture.place[1], end_x - x, end_y - y, shared);
    }
}
