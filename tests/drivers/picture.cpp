/* The kernel of decoded pictures, on the CPU. */

#include "cuda.h"

#include "../../src/driver/cuda/picture.cu"

static const Picture *list;
static unsigned long long pictures, most_tiles;

extern "C" void prepare(unsigned blocks, const Picture *given, unsigned long long count) {
    list = given;
    pictures = count;
    run_blocks(blocks, [] { pinfeed_prepare_pictures(list, pictures); });
}

extern "C" void draw(unsigned blocks, const Picture *given, unsigned long long count, unsigned long long tiles) {
    list = given;
    pictures = count;
    most_tiles = tiles;
    run_blocks(blocks, [] { pinfeed_draw_pictures(list, pictures, most_tiles); });
}
