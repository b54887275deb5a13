// Changes rows that were drawn of decoded pictures: colours, what is painted over, and where pixels come from; as the CPU does, which
// is as Pillow does, byte for byte (src/picture/colour.rs, src/picture/warp.rs and src/picture/change.rs are the same in plain code).
// `ci/ptx.sh --write` makes changes.ptx from this file; without fused multiply-add, so that each product is rounded as on the CPU.
//
// A launch makes one pass over each of its pictures. The first change of a pass may move pixels, and then reads them elsewhere than it
// writes; or it may need what the pass before has counted of the whole picture. Each of the others changes a pixel by itself.
//
// A picture has PARTS parts, each of which is a block's. A part counts into its own place, so that nothing has to be cleared before; whoever
// needs the counts adds them up.

typedef unsigned char Byte;
typedef unsigned long long Address;

#define THREADS 256
#define PARTS 8

// As `Change` in driver/kernels/changes.rs numbers them.
enum {
    GREYED, BRIGHTNESS, CONTRAST, SATURATION, HUE, SHARPNESS, POSTERIZE, SOLARIZE, AUTO_CONTRAST, EQUALIZE,
    ERASE, SMOOTH_WARP, FIXED_WARP, NEAREST_WARP, CUT
};
enum { NOTHING, LUMA, VALUES };

// As `Record` in driver/kernels/changes.rs.
struct Change {
    unsigned kind;
    unsigned number;   // the turn of the hue, the bits that are kept; or a colour: red, green, blue, from the lowest byte
    float factor;      // or the threshold
    unsigned flip;     // 1: left and right, 2: top and bottom
    unsigned place[4]; // left, top, width, height
    double from[6];    // of a warp; of a cut, the first pixel that is shown
};

// As `Pass` there.
struct Pass {
    Address from, to;
    Address counted; // what the pass before has counted
    Address counts;  // where this one does
    unsigned from_size[2];
    unsigned to_size[2];
    unsigned first, count; // its changes
    unsigned moves;        // whether the first of them moves pixels
    unsigned counting;     // what is counted
};

struct Pixel {
    Byte channels[3];
};

static __device__ __forceinline__ Pixel load(const Byte *from, unsigned at) {
    from += (Address)at * 3;
    const Pixel pixel = {{from[0], from[1], from[2]}};
    return pixel;
}

static __device__ __forceinline__ void store(Byte *to, unsigned at, const Pixel &pixel) {
    to += (Address)at * 3;
    for (int channel = 0; channel < 3; channel++) to[channel] = pixel.channels[channel];
}

static __device__ __forceinline__ Pixel colour(unsigned number) {
    const Pixel pixel = {{(Byte)number, (Byte)(number >> 8), (Byte)(number >> 16)}};
    return pixel;
}

// As Rust's `as u8`: what is no number becomes 0.
static __device__ __forceinline__ Byte byte_of(float value) { return value > 0 ? value < 255 ? (Byte)value : 255 : 0; }
static __device__ __forceinline__ Byte byte_of(double value) { return value > 0 ? value < 255 ? (Byte)value : 255 : 0; }

static __device__ __forceinline__ Byte blend(Byte from, Byte to, float factor) {
    return byte_of((float)from + factor * ((float)to - (float)from));
}

static __device__ __forceinline__ Byte luma(const Pixel &pixel) {
    return (Byte)((pixel.channels[0] * 19595u + pixel.channels[1] * 38470u + pixel.channels[2] * 7471u + 0x8000u) >> 16);
}

// Half away from zero, as `f64::round`, of what is not negative.
static __device__ __forceinline__ Byte rounded(double value) {
    const int whole = (int)value;
    return (Byte)(value - whole >= 0.5 ? whole + 1 : whole);
}

static __device__ Pixel turned(const Pixel &pixel, unsigned turn) {
    const Byte red = pixel.channels[0], green = pixel.channels[1], blue = pixel.channels[2];
    const Byte more = red > green ? red : green, less = red < green ? red : green;
    const Byte value = more > blue ? more : blue, least = less < blue ? less : blue;
    if (value == least) return colour(value * 0x010101u);
    const float range = (float)(value - least);
    const float share = range / (float)value;
    const float rc = (float)(value - red) / range, gc = (float)(value - green) / range, bc = (float)(value - blue) / range;
    float angle;
    if (red == value)
        angle = bc - gc;
    else if (green == value)
        angle = (float)(2.0 + (double)rc - (double)bc);
    else
        angle = (float)(4.0 + (double)gc - (double)rc);
    const double circle = (double)angle / 6.0 + 1.0;
    const float part = (float)(circle - (double)(int)circle);
    const Byte hue = (Byte)(byte_of((double)part * 255.0) + turn);
    const Byte saturation = byte_of((double)share * 255.0);
    if (saturation == 0) return colour(value * 0x010101u);

    const double around = (double)hue * 6.0 / 255.0;
    const int sixth = (int)around;
    const double rest = (double)(float)(around - (double)sixth);
    const double full = (double)(float)((double)saturation / 255.0);
    const Byte low = rounded((double)value * (1.0 - full));
    const Byte falling = rounded((double)value * (1.0 - full * rest));
    const Byte rising = rounded((double)value * (1.0 - full * (1.0 - rest)));
    Pixel result = {{low, low, low}};
    Byte *const to = result.channels;
    switch (sixth % 6) {
    case 0: to[0] = value, to[1] = rising; break;
    case 1: to[0] = falling, to[1] = value; break;
    case 2: to[1] = value, to[2] = rising; break;
    case 3: to[1] = falling, to[2] = value; break;
    case 4: to[0] = rising, to[2] = value; break;
    default: to[0] = value, to[2] = falling; break;
    }
    return result;
}

// A change of a pixel at a place by itself. `table` is for the one that needed a count.
static __device__ void change_pixel(const Change &change, unsigned x, unsigned y, const Byte (*table)[256], Pixel &pixel) {
    switch (change.kind) {
    case GREYED:
        pixel = colour(luma(pixel) * 0x010101u);
        break;
    case BRIGHTNESS:
        for (int channel = 0; channel < 3; channel++) pixel.channels[channel] = blend(0, pixel.channels[channel], change.factor);
        break;
    case SATURATION: {
        const Byte grey = luma(pixel);
        for (int channel = 0; channel < 3; channel++) pixel.channels[channel] = blend(grey, pixel.channels[channel], change.factor);
        break;
    }
    case HUE:
        pixel = turned(pixel, change.number);
        break;
    case POSTERIZE: {
        const Byte mask = (Byte) ~(0xFFu >> change.number);
        for (int channel = 0; channel < 3; channel++) pixel.channels[channel] &= mask;
        break;
    }
    case SOLARIZE:
        for (int channel = 0; channel < 3; channel++) {
            const Byte value = pixel.channels[channel];
            pixel.channels[channel] = (float)value < change.factor ? value : (Byte)(255 - value);
        }
        break;
    case CONTRAST:
    case AUTO_CONTRAST:
    case EQUALIZE:
        for (int channel = 0; channel < 3; channel++) pixel.channels[channel] = table[channel][pixel.channels[channel]];
        break;
    case ERASE:
        // (Without a branch between the loads: the compiler would join them in a way that older drivers do not know.)
        if ((x - change.place[0] < change.place[2]) & (y - change.place[1] < change.place[3])) pixel = colour(change.number);
        break;
    }
}

// A pixel that is made of others.
struct Moved {
    const Byte *from;
    unsigned width, height;
    const Change *change;
    long long fixed[6];

    __device__ Moved(const Pass &pass, const Change *given) {
        from = (const Byte *)pass.from;
        width = pass.from_size[0];
        height = pass.from_size[1];
        change = given;
        for (int i = 0; i < 6; i++) fixed[i] = 0;
        if (!pass.moves || change->kind != FIXED_WARP) return;
        const double a = change->from[0], b = change->from[1], c = change->from[2];
        const double d = change->from[3], e = change->from[4], f = change->from[5];
        const double values[6] = {a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5};
        for (int i = 0; i < 6; i++) fixed[i] = (long long)floor(values[i] * 65536.0 + 0.5);
    }

    __device__ __forceinline__ bool is_inside(double x, double y) const {
        return 0.0 <= x && x < (double)width && 0.0 <= y && y < (double)height;
    }

    __device__ __forceinline__ Pixel at(long long x, long long y) const {
        x = x < 0 ? 0 : x < (long long)width ? x : (long long)width - 1;
        y = y < 0 ? 0 : y < (long long)height ? y : (long long)height - 1;
        return load(from, (unsigned)y * width + (unsigned)x);
    }

    __device__ Pixel sharpened(unsigned x, unsigned y) const {
        Pixel pixel = load(from, y * width + x);
        if (x == 0 || y == 0 || x + 1 >= width || y + 1 >= height) return pixel;
        unsigned sums[3];
        for (int channel = 0; channel < 3; channel++) sums[channel] = 4u * pixel.channels[channel];
        for (unsigned line = y - 1; line <= y + 1; line++)
            for (unsigned column = x - 1; column <= x + 1; column++) {
                const Pixel near = load(from, line * width + column);
                for (int channel = 0; channel < 3; channel++) sums[channel] += near.channels[channel];
            }
        for (int channel = 0; channel < 3; channel++) {
            const Byte smooth = (Byte)((2 * sums[channel] + 13) / 26);
            pixel.channels[channel] = blend(smooth, pixel.channels[channel], change->factor);
        }
        return pixel;
    }

    __device__ Pixel warped(unsigned column, unsigned line) const {
        const double x = (double)column + 0.5, y = (double)line + 0.5;
        double right = change->from[0] * x + change->from[1] * y + change->from[2];
        double down = change->from[3] * x + change->from[4] * y + change->from[5];
        if (!is_inside(right, down)) return colour(change->number);
        if (change->kind == NEAREST_WARP) return load(from, (unsigned)down * width + (unsigned)right);
        right -= 0.5;
        down -= 0.5;
        const double left = floor(right), top = floor(down);
        right -= left;
        down -= top;
        const long long x0 = (long long)left, y0 = (long long)top;
        const Pixel near[4] = {at(x0, y0), at(x0 + 1, y0), at(x0, y0 + 1), at(x0 + 1, y0 + 1)};
        Pixel pixel;
        for (int channel = 0; channel < 3; channel++) {
            const double corners[4] = {(double)near[0].channels[channel], (double)near[1].channels[channel],
                                       (double)near[2].channels[channel], (double)near[3].channels[channel]};
            const double above = corners[0] + (corners[1] - corners[0]) * right;
            const double below = corners[2] + (corners[3] - corners[2]) * right;
            pixel.channels[channel] = byte_of(above + (below - above) * down);
        }
        return pixel;
    }

    __device__ Pixel pixel(unsigned x, unsigned y, const unsigned *size) const {
        switch (change->kind) {
        case SHARPNESS:
            return sharpened(x, y);
        case FIXED_WARP: {
            const long long column = (fixed[2] + (long long)y * fixed[1] + (long long)x * fixed[0]) >> 16;
            const long long line = (fixed[5] + (long long)y * fixed[4] + (long long)x * fixed[3]) >> 16;
            const bool inside = column >= 0 && column < (long long)width && line >= 0 && line < (long long)height;
            return inside ? load(from, (unsigned)line * width + (unsigned)column) : colour(change->number);
        }
        case CUT: {
            if (change->flip & 1) x = size[0] - 1 - x;
            if (change->flip & 2) y = size[1] - 1 - y;
            x -= change->place[0];
            y -= change->place[1];
            if (x >= change->place[2] || y >= change->place[3]) return colour(change->number);
            return load(from, ((unsigned)change->from[1] + y) * width + (unsigned)change->from[0] + x);
        }
        default:
            return warped(x, y);
        }
    }
};

// What a channel's values become, by how often each is there: Pillow's `autocontrast` and `equalize`. One thread makes a channel's.
static __device__ void make_table(unsigned kind, const unsigned *counts, Byte *table) {
    unsigned least = 0, most = 255, used = 0, all = 0;
    while (least < 255 && counts[least] == 0) least++;
    while (most > least && counts[most] == 0) most--;
    for (unsigned value = least; value <= most; value++) {
        used += counts[value] > 0;
        all += counts[value];
    }
    const unsigned step = (all - counts[most]) / 255;
    const bool is_same = kind == AUTO_CONTRAST ? used <= 1 : used <= 1 || step == 0;
    const double scale = 255.0 / (double)(most - least), offset = -(double)least * scale;
    unsigned sum = step / 2;
    for (unsigned value = 0; value < 256; value++) {
        if (is_same)
            table[value] = (Byte)value;
        else if (kind == AUTO_CONTRAST)
            table[value] = byte_of((double)value * scale + offset);
        else {
            const unsigned made = sum / step;
            table[value] = (Byte)(made < 255 ? made : 255);
            sum += counts[value];
        }
    }
}

// Makes the table of a pass whose first change needs counts. All threads come here.
static __device__ void prepare_table(const Pass &pass, const Change &change, unsigned *counts, Byte (*table)[256]) {
    if (change.kind == CONTRAST) {
        unsigned long long sum = 0;
        for (unsigned part = 0; part < PARTS; part++) sum += ((const unsigned long long *)pass.counted)[part];
        const double mean = (double)sum / (double)((unsigned long long)pass.from_size[0] * pass.from_size[1]);
        const Byte middle = byte_of(mean + 0.5);
        for (unsigned at = threadIdx.x; at < 3 * 256; at += THREADS) table[at / 256][at % 256] = blend(middle, (Byte)at, change.factor);
    } else {
        for (unsigned at = threadIdx.x; at < 3 * 256; at += THREADS) {
            unsigned sum = 0;
            for (unsigned part = 0; part < PARTS; part++) sum += ((const unsigned *)pass.counted)[part * 3 * 256 + at];
            counts[at] = sum;
        }
        __syncthreads();
        if (threadIdx.x < 3) make_table(change.kind, counts + 256 * threadIdx.x, table[threadIdx.x]);
    }
    __syncthreads();
}

extern "C" __global__ void pinfeed_change_pictures(const Pass *passes, const Change *changes, unsigned long long count) {
    __shared__ unsigned counts[3 * 256];
    __shared__ unsigned long long sums[THREADS];
    __shared__ Byte table[3][256];
    for (unsigned long long item = blockIdx.x; item < count * PARTS; item += gridDim.x) {
        const Pass pass = passes[item / PARTS]; // a copy: what is stored below could be anything's bytes
        const unsigned part = (unsigned)(item % PARTS);
        const Change *const own = changes + pass.first;
        __syncthreads(); // what is shared is no longer read for the part before
        if (pass.counted != 0) prepare_table(pass, *own, counts, table);
        if (pass.counting == VALUES) {
            for (unsigned at = threadIdx.x; at < 3 * 256; at += THREADS) counts[at] = 0;
            __syncthreads();
        }
        const Moved moved(pass, own);
        const unsigned width = pass.to_size[0];
        const unsigned long long pixels = (unsigned long long)width * pass.to_size[1];
        const unsigned end = (unsigned)(pixels * (part + 1) / PARTS);
        unsigned long long sum = 0;
        for (unsigned at = (unsigned)(pixels * part / PARTS) + threadIdx.x; at < end; at += THREADS) {
            const unsigned x = at % width, y = at / width;
            Pixel pixel = pass.moves ? moved.pixel(x, y, pass.to_size) : load((const Byte *)pass.from, at);
            for (unsigned number = pass.moves; number < pass.count; number++) change_pixel(own[number], x, y, table, pixel);
            if (pass.count > 0) store((Byte *)pass.to, at, pixel);
            if (pass.counting == LUMA)
                sum += luma(pixel);
            else if (pass.counting == VALUES)
                for (unsigned channel = 0; channel < 3; channel++) atomicAdd(&counts[256 * channel + pixel.channels[channel]], 1u);
        }
        if (pass.counting == LUMA) {
            sums[threadIdx.x] = sum;
            for (unsigned step = THREADS / 2; step > 0; step /= 2) {
                __syncthreads();
                if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
            }
            if (threadIdx.x == 0) ((unsigned long long *)pass.counts)[part] = sums[0];
        } else if (pass.counting == VALUES) {
            __syncthreads();
            for (unsigned at = threadIdx.x; at < 3 * 256; at += THREADS) ((unsigned *)pass.counts)[part * 3 * 256 + at] = counts[at];
        }
    }
}
