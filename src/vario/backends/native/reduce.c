/* Summaries of arrays on the host in one pass each: what vario/backends/torch/reduce/cpu.py does with a few passes of
 * torch. Plain C, called through ctypes with arrays of addresses; no header of Python or torch is needed.
 *
 * Sums are kept in double, in LANES partial sums. Extremes skip NaN, because every comparison with it is false. NaN and
 * Inf are counted only in blocks whose sums are not finite.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(VARIO_NO_CLONES)
#define FAST __attribute__((target_clones("avx2", "default")))
#else
#define FAST
#endif

enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 };
enum { COUNT, SUM, SUM_SQUARES, MIN, MAX, NANS, INFS, ZEROS, NUM_COLUMNS };

#define LANES 16
#define BLOCK 4096

int vario_native_version(void) { return 1; }

/* GCC's vectors: the compiler makes of them what the processor has. */
typedef float Floats __attribute__((vector_size(32), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(32), aligned(4)));
typedef float HalfFloats __attribute__((vector_size(16), aligned(4)));
typedef double Doubles __attribute__((vector_size(32), aligned(8)));
typedef int64_t Longs __attribute__((vector_size(32), aligned(8)));

#define CHOSEN(mask, one, other, Kind, Bits) ((Kind)(((Bits)(one) & (mask)) | ((Bits)(other) & ~(mask))))

/* Each adds a whole number of LANES elements to a row. */
FAST static void block_of_floats(const float *x, int64_t size, double eps, double *row)
{
    /* |v| < eps for floats is |v| < the smallest float that is not below eps; |v| == 0 is |v| < any positive one. */
    float least = eps > 0 ? (float)eps : 0x1p-149f;
    if (eps > 0 && (double)least < eps)
        least = nextafterf(least, INFINITY);
    Floats low = INFINITY - (Floats){0}, high = -low, bound = least - (Floats){0};
    Ints zeros = {0}, magnitude = 0x7fffffff - (Ints){0};
    Doubles sums[4] = {{0}}, squares[4] = {{0}};
    for (int64_t i = 0; i < size; i += LANES) {
        for (int k = 0; k < LANES; k += 8) {
            Floats v = *(const Floats *)(x + i + k);
            Ints below = v < low, above = v > high;
            /* Magnitudes of floats are ordered as integers, subnormal ones included. */
            zeros -= ((Ints)v & magnitude) < (Ints)bound;
            low = CHOSEN(below, v, low, Floats, Ints);
            high = CHOSEN(above, v, high, Floats, Ints);
        }
        for (int k = 0; k < 4; k++) {
            Doubles v = __builtin_convertvector(*(const HalfFloats *)(x + i + 4 * k), Doubles);
            sums[k] += v;
            squares[k] += v * v;
        }
    }
    Doubles sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    Doubles square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    for (int k = 0; k < 4; k++) {
        row[SUM] += sum[k];
        row[SUM_SQUARES] += square[k];
    }
    for (int k = 0; k < 8; k++) {
        row[ZEROS] += zeros[k];
        row[MIN] = low[k] < row[MIN] ? low[k] : row[MIN];
        row[MAX] = high[k] > row[MAX] ? high[k] : row[MAX];
    }
}

FAST static void block_of_doubles(const double *x, int64_t size, double eps, double *row)
{
    double least = eps > 0 ? eps : 0x1p-1074;
    Doubles low = INFINITY - (Doubles){0}, high = -low, bound = least - (Doubles){0};
    Longs zeros = {0}, magnitude = INT64_MAX - (Longs){0};
    Doubles sum = {0}, square = {0};
    for (int64_t i = 0; i < size; i += 4) {
        Doubles v = *(const Doubles *)(x + i);
        Longs below = v < low, above = v > high;
        zeros -= ((Longs)v & magnitude) < (Longs)bound;
        low = CHOSEN(below, v, low, Doubles, Longs);
        high = CHOSEN(above, v, high, Doubles, Longs);
        sum += v;
        square += v * v;
    }
    for (int k = 0; k < 4; k++) {
        row[SUM] += sum[k];
        row[SUM_SQUARES] += square[k];
        row[ZEROS] += (double)zeros[k];
        row[MIN] = low[k] < row[MIN] ? low[k] : row[MIN];
        row[MAX] = high[k] > row[MAX] ? high[k] : row[MAX];
    }
}

FAST static void count_floats(const float *x, int64_t size, double *row)
{
    int32_t nans = 0, infs = 0;
    for (int64_t i = 0; i < size; i++) {
        nans += x[i] != x[i];
        infs += fabsf(x[i]) == INFINITY;
    }
    row[NANS] += nans;
    row[INFS] += infs;
}

FAST static void count_doubles(const double *x, int64_t size, double *row)
{
    int64_t nans = 0, infs = 0;
    for (int64_t i = 0; i < size; i++) {
        nans += x[i] != x[i];
        infs += fabs(x[i]) == INFINITY;
    }
    row[NANS] += nans;
    row[INFS] += infs;
}

FAST static void widen_bfloat16(const uint16_t *x, int64_t size, float *to)
{
    uint32_t *bits = (uint32_t *)to;
    for (int64_t i = 0; i < size; i++)
        bits[i] = (uint32_t)x[i] << 16;
}

/* By integers but for one subtraction, so that a processor set to flush subnormals does not. */
FAST static void widen_float16(const uint16_t *x, int64_t size, float *to)
{
    for (int64_t i = 0; i < size; i++) {
        uint32_t magnitude = (uint32_t)(x[i] & 0x7fff) << 13, sign = (uint32_t)(x[i] & 0x8000) << 16;
        uint32_t normal = magnitude + (112u << 23), special = magnitude | 0x7f800000u;
        uint32_t small = magnitude + (113u << 23), bits;
        float shifted;
        memcpy(&shifted, &small, 4);
        shifted -= 0x1p-14f;
        memcpy(&small, &shifted, 4);
        bits = magnitude >= (31u << 23) ? special : magnitude < (1u << 23) ? small : normal;
        bits |= sign;
        memcpy(to + i, &bits, 4);
    }
}

static int width_of(int dtype) { return dtype == FLOAT64 ? 8 : dtype == FLOAT32 ? 4 : 2; }

/* Returns a block of elements as float or double, widened or padded into `scratch` where that is needed. */
static const void *block_at(const char *address, int64_t size, int64_t padded, int dtype, double *scratch)
{
    int width = width_of(dtype), stored = dtype == FLOAT64 ? 8 : 4;
    if (width == stored && size == padded && (uintptr_t)address % (uintptr_t)width == 0)
        return address;
    if (dtype == BFLOAT16)
        widen_bfloat16((const uint16_t *)address, size, (float *)scratch);
    else if (dtype == FLOAT16)
        widen_float16((const uint16_t *)address, size, (float *)scratch);
    else
        memcpy(scratch, address, (size_t)(size * width));
    memset((char *)scratch + size * stored, 0, (size_t)((padded - size) * stored));
    return scratch;
}

static void summarise(const char *address, int64_t size, int dtype, double eps, double *row)
{
    double scratch[BLOCK];
    for (int column = 0; column < NUM_COLUMNS; column++)
        row[column] = 0;
    row[MIN] = INFINITY;
    row[MAX] = -INFINITY;
    for (int64_t first = 0; first < size; first += BLOCK) {
        int64_t own = size - first < BLOCK ? size - first : BLOCK, whole = own - own % LANES, rest = own - whole;
        double block[NUM_COLUMNS] = {0};
        block[MIN] = INFINITY;
        block[MAX] = -INFINITY;
        const char *from = address + first * width_of(dtype);
        if (whole) {
            const void *x = block_at(from, whole, whole, dtype, scratch);
            dtype == FLOAT64 ? block_of_doubles(x, whole, eps, block) : block_of_floats(x, whole, eps, block);
            if (!isfinite(block[SUM] + block[SUM_SQUARES]))
                dtype == FLOAT64 ? count_doubles(x, whole, block) : count_floats(x, whole, block);
        }
        if (rest) {
            const void *x = block_at(from + whole * width_of(dtype), rest, rest, dtype, scratch);
            for (int64_t i = 0; i < rest; i++) {
                double v = dtype == FLOAT64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
                block[SUM] += v;
                block[SUM_SQUARES] += v * v;
                block[MIN] = v < block[MIN] ? v : block[MIN];
                block[MAX] = v > block[MAX] ? v : block[MAX];
                block[NANS] += v != v;
                block[INFS] += fabs(v) == INFINITY;
                block[ZEROS] += eps > 0 ? fabs(v) < eps : v == 0.0;
            }
        }
        row[SUM] += block[SUM];
        row[SUM_SQUARES] += block[SUM_SQUARES];
        row[NANS] += block[NANS];
        row[INFS] += block[INFS];
        row[ZEROS] += block[ZEROS];
        row[MIN] = block[MIN] < row[MIN] ? block[MIN] : row[MIN];
        row[MAX] = block[MAX] > row[MAX] ? block[MAX] : row[MAX];
    }
    row[COUNT] = (double)size;
    if (row[MIN] > row[MAX])
        row[MIN] = row[MAX] = NAN;
}

/* One row of NUM_COLUMNS doubles for each array. */
void vario_summarise(int64_t num, const int64_t *addresses, const int64_t *sizes, int dtype, double eps, double *rows)
{
    for (int64_t at = 0; at < num; at++)
        summarise((const char *)(intptr_t)addresses[at], sizes[at], dtype, eps, rows + at * NUM_COLUMNS);
}

FAST static double squares_of_floats(const float *x, int64_t size)
{
    double squares[LANES] = {0}, total = 0;
    int64_t whole = size - size % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int k = 0; k < LANES; k++)
            squares[k] += (double)x[i + k] * (double)x[i + k];
    for (int64_t i = whole; i < size; i++)
        total += (double)x[i] * (double)x[i];
    for (int k = 0; k < LANES; k++)
        total += squares[k];
    return total;
}

static double squares_of(const char *address, int64_t size, int dtype)
{
    double scratch[BLOCK], total = 0;
    if (dtype == FLOAT32 && (uintptr_t)address % 4 == 0)
        return squares_of_floats((const float *)address, size);
    for (int64_t first = 0; first < size; first += BLOCK) {
        int64_t own = size - first < BLOCK ? size - first : BLOCK;
        const void *x = block_at(address + first * width_of(dtype), own, own, dtype, scratch);
        if (dtype != FLOAT64) {
            total += squares_of_floats(x, own);
            continue;
        }
        for (int64_t i = 0; i < own; i++)
            total += ((const double *)x)[i] * ((const double *)x)[i];
    }
    return total;
}

/* The sum of the squares of each array. */
void vario_squares(int64_t num, const int64_t *addresses, const int64_t *sizes, int dtype, double *found)
{
    for (int64_t at = 0; at < num; at++)
        found[at] = squares_of((const char *)(intptr_t)addresses[at], sizes[at], dtype);
}
