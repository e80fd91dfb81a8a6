// What blocks.cpp and small.cpp are made of: vectors, products, transposes, memory, sums, pieces of the work.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64, HEIGHT = 6, WIDTH = 4;  // of a vector; of the results that a product holds in registers
#elif defined(__AVX__)
constexpr int BYTES = 32, HEIGHT = 6, WIDTH = 2;
#else
constexpr int BYTES = 16, HEIGHT = 4, WIDTH = 4;
#endif
constexpr long ROWS = 64;   // elements of a block
constexpr long EXACT = 16;  // blocks that are summed up in the precision of the elements, before float64 takes over

template <class T>
struct Vectors;
template <>
struct Vectors<float> {
  typedef float V __attribute__((vector_size(BYTES)));
  typedef int32_t I __attribute__((vector_size(BYTES)));
  static constexpr int BIAS = 127, MANTISSA = 23, TERMS = 7;
  static constexpr float LEAST = -87.33654f, MOST = 88.72283f, ROUND = 12582912.0f;
  static constexpr float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
};
template <>
struct Vectors<double> {
  typedef double V __attribute__((vector_size(BYTES)));
  typedef int64_t I __attribute__((vector_size(BYTES)));
  static constexpr int BIAS = 1023, MANTISSA = 52, TERMS = 13;
  static constexpr double LEAST = -708.39641853226408, MOST = 709.78271289338397, ROUND = 6755399441055744.0;
  static constexpr double LN2_HIGH = 6.93145751953125e-1, LN2_LOW = 1.42860682030941723212e-6;
};
template <class T>
using Vec = typename Vectors<T>::V;
template <class T>
constexpr long LANES = BYTES / sizeof(T);

template <class T>
inline Vec<T> load(const T *p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
inline void store(T *p, Vec<T> v) {
  std::memcpy(p, &v, sizeof v);
}

template <class T>
constexpr T inverse_factorial(int k) {
  return k > 1 ? inverse_factorial<T>(k - 1) / T(k) : T(1);
}

#ifdef __AVX512F__
// x 2^n: 0 where that is too small, infinity where it is too large.
inline Vec<float> scaled(Vec<float> x, Vec<float> n) { return _mm512_scalef_ps(x, n); }
inline Vec<double> scaled(Vec<double> x, Vec<double> n) { return _mm512_scalef_pd(x, n); }
// NaN stays: it is the second operand.
inline Vec<float> within(Vec<float> x, float end) {
  return _mm512_min_ps(_mm512_set1_ps(end), _mm512_max_ps(_mm512_set1_ps(-end), x));
}
inline Vec<double> within(Vec<double> x, double end) {
  return _mm512_min_pd(_mm512_set1_pd(end), _mm512_max_pd(_mm512_set1_pd(-end), x));
}
#endif

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2, exp(r) by its Taylor series. 0 where that is too small.
template <class T>
inline Vec<T> exponential(Vec<T> x) {
  typedef Vectors<T> S;
#ifdef __AVX512F__
  Vec<T> in = within(x, 2 * S::MOST);
#else
  Vec<T> in = x < S::LEAST ? (x - x) + S::LEAST : x;
  in = x < -1e30f ? Vec<T>{} + S::LEAST : in;  // -inf - -inf would be no number
  in = in > S::MOST ? Vec<T>{} + S::MOST : in;
#endif
  Vec<T> n = (in * T(1.44269504088896340736) + S::ROUND) - S::ROUND;
  Vec<T> r = (in - n * S::LN2_HIGH) - n * S::LN2_LOW;
  Vec<T> p = Vec<T>{} + inverse_factorial<T>(S::TERMS);
#pragma GCC unroll 16
  for (int k = S::TERMS - 1; k >= 0; k--) p = p * r + inverse_factorial<T>(k);
#ifdef __AVX512F__
  return scaled(p, n);
#else
  // In two halves, as 2^n itself may be too large.
  typename S::I i = __builtin_convertvector(n, typename S::I), half = i >> 1;
  typename S::I a = (half + S::BIAS) << S::MANTISSA, b = (i - half + S::BIAS) << S::MANTISSA;
  Vec<T> fa, fb;
  std::memcpy(&fa, &a, sizeof fa);
  std::memcpy(&fb, &b, sizeof fb);
  p = p * fa * fb;
  p = x > S::MOST ? Vec<T>{} + T(INFINITY) : p;
  return x < S::LEAST ? Vec<T>{} : p;
#endif
}

// ---------------------------------------------------------------------------------------------------- products

// C (M, N) = or += A (M, K) B (K, N), of M = HEIGHT or less and N = WIDTH vectors or less. TURNED: A lies as (K, M).
template <class T, int M, int N, bool ADD, bool TURNED>
inline void corner(long K, const T *A, long lda, const T *B, long ldb, T *C, long ldc) {
  constexpr long L = LANES<T>;
  Vec<T> sum[M][N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) sum[i][j] = ADD ? load(C + i * ldc + j * L) : Vec<T>{};
  for (long k = 0; k < K; k++) {
    Vec<T> b[N];
    for (int j = 0; j < N; j++) b[j] = load(B + k * ldb + j * L);
    for (int i = 0; i < M; i++) {
      const T a = TURNED ? A[k * lda + i] : A[i * lda + k];
      for (int j = 0; j < N; j++) sum[i][j] += a * b[j];
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) store(C + i * ldc + j * L, sum[i][j]);
}

// The corner of this size, which is found from the largest one down.
template <class T, int M, int N, bool ADD, bool TURNED>
inline void corner_of(long rows, long vectors, long K, const T *A, long lda, const T *B, long ldb, T *C, long ldc) {
  if constexpr (M > 1)
    if (rows < M) return corner_of<T, M - 1, N, ADD, TURNED>(rows, vectors, K, A, lda, B, ldb, C, ldc);
  if constexpr (N > 1)
    if (vectors < N) return corner_of<T, M, N - 1, ADD, TURNED>(rows, vectors, K, A, lda, B, ldb, C, ldc);
  corner<T, M, N, ADD, TURNED>(K, A, lda, B, ldb, C, ldc);
}

// N is a multiple of LANES.
template <bool ADD, bool TURNED = false, class T>
void product(long M, long N, long K, const T *A, long lda, const T *B, long ldb, T *C, long ldc) {
  constexpr long L = LANES<T>;
  for (long n = 0; n < N; n += WIDTH * L)
    for (long m = 0; m < M; m += HEIGHT)
      corner_of<T, HEIGHT, WIDTH, ADD, TURNED>(M - m, (N - n) / L, K, A + (TURNED ? m : m * lda), lda, B + n, ldb,
                                               C + m * ldc + n, ldc);
}

// ---------------------------------------------------------------------------------------------------- transposes

// Of pairs of rows whose numbers differ in bit S, one takes what the other has off the diagonal.
template <class T, int S, int... K>
inline void exchange(Vec<T> &a, Vec<T> &b, std::integer_sequence<int, K...>) {
  constexpr int L = int(LANES<T>);
  const Vec<T> first = __builtin_shufflevector(a, b, ((K & S) ? L + (K ^ S) : K)...);
  b = __builtin_shufflevector(a, b, ((K & S) ? L + K : (K ^ S))...);
  a = first;
}

template <class T, int S>
inline void exchanges(Vec<T> *v) {
  constexpr int L = int(LANES<T>);
  if constexpr (S < L) {
    for (int i = 0; i < L; i++)
      if (!(i & S)) exchange<T, S>(v[i], v[i | S], std::make_integer_sequence<int, L>{});
    exchanges<T, 2 * S>(v);
  }
}

// out (columns, rows) = in (rows, columns), both multiples of LANES.
template <class T>
void transpose(long rows, long columns, const T *in, long ldi, T *out, long ldo) {
  constexpr long L = LANES<T>;
  for (long r = 0; r < rows; r += L)
    for (long c = 0; c < columns; c += L) {
      Vec<T> v[L];
      for (int i = 0; i < L; i++) v[i] = load(in + (r + i) * ldi + c);
      exchanges<T, 1>(v);
      for (int i = 0; i < L; i++) store(out + (c + i) * ldo + r, v[i]);
    }
}

// ---------------------------------------------------------------------------------------------------- elements

struct Half {  // bfloat16
  uint16_t bits;
};
inline float number(float x) { return x; }
inline double number(double x) { return x; }
inline float number(Half x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline void put(float *to, float x) { *to = x; }
inline void put(double *to, double x) { *to = x; }
inline void put(Half *to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const bool nan = x != x;
  bits += 0x7fff + ((bits >> 16) & 1);  // to the nearest, ties to even
  to->bits = nan ? 0x7fc0 : uint16_t(bits >> 16);
}

// Memory of one call; with `zeros` it is 0.
template <class T>
class Space {
 public:
  explicit Space(long numbers, bool zeros = true)
      : start(static_cast<T *>(std::aligned_alloc(64, size(numbers)))), next(start) {
    if (start && zeros) std::memset(start, 0, size(numbers));
  }
  ~Space() { std::free(start); }
  Space(const Space &) = delete;
  bool there() const { return start; }
  T *take(long numbers) {
    T *taken = next;
    next += (numbers + 15) / 16 * 16;
    return taken;
  }

 private:
  static size_t size(long numbers) { return (numbers * sizeof(T) / 64 + 64) * 64; }
  T *start, *next;
};

template <class T>
long padded(long n) {
  return (n + LANES<T> - 1) / LANES<T> * LANES<T>;
}

// `all` elements, one after the other, each padded to a multiple of LANES; zeros where there are fewer. `by_row` and
// `by_number` are the distances in memory from one to the next.
template <class T, class E>
void read(const E *x, long rows, long D, long ld, T *out, long by_row, long by_number = 1, long all = ROWS) {
  for (long r = 0; r < rows; r++) {
    const E *from = x + r * by_row;
    if (by_number == 1)
      for (long c = 0; c < D; c++) out[r * ld + c] = number(from[c]);
    else
      for (long c = 0; c < D; c++) out[r * ld + c] = number(from[c * by_number]);
  }
  if (rows < all) std::memset(out + rows * ld, 0, (all - rows) * ld * sizeof(T));
}

template <class T, class E>
void write(const T *in, long rows, long D, long ld, E *x) {
  for (long r = 0; r < rows; r++)
    for (long c = 0; c < D; c++) put(&x[r * D + c], in[r * ld + c]);
}

// Of R numbers, a multiple of LANES.
template <class T>
T sum_of(const T *x, long R = ROWS) {
  Vec<T> s = load(x);
  for (long r = LANES<T>; r < R; r += LANES<T>) s += load(x + r);
  T sum = 0;
  for (long l = 0; l < LANES<T>; l++) sum += s[l];
  return sum;
}

// Sums over elements of M rows of D numbers, in the precision of the elements until they are flushed.
template <class T>
struct Sum {
  T *part;
  double *total;
  long M, D, ld;
  void flush() {
    for (long m = 0; m < M; m++)
      for (long c = 0; c < D; c++) total[m * D + c] += part[m * ld + c];
    std::memset(part, 0, M * ld * sizeof(T));
  }
};

// Elements n0 to n1 of sets b0 to b1. Sums of its sets are written from `slot` on, sums of all its sets at `number`.
struct Piece {
  long b0, b1, n0, n1, slot, number;
};

// Pieces that all threads take from, each once.
class Pieces {
 public:
  Pieces(const long *all, long number, long *turn) : all(all), number(number), turn(turn) {}
  bool take(Piece &piece) {
    const long i = __atomic_fetch_add(turn, 1, __ATOMIC_RELAXED);
    if (i >= number) return false;
    const long *p = all + 5 * i;
    piece = Piece{p[0], p[1], p[2], p[3], p[4], i};
    return true;
  }

 private:
  const long *all, number;
  long *turn;
};

}  // namespace

// What is called: p has the arrays, n the whole numbers and real the others, in the order of the functions' arguments.
// The functions return 1 if there is no memory, else 0.
#define ARGUMENTS void **p, const long *n, const double *real, const long *all, long number, long *turn
#define PIECES Pieces(all, number, turn)
