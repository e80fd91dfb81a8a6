// Induced attention, a block of elements at a time: `gather` and `spread` of gather.py and spread.py, where the
// formulas and the numbers of their steps are. Compiled as targets.py says.
//
// A block is ROWS elements, held with the elements innermost: (numbers, ROWS). So norms, softmax and activations work
// on whole vectors of elements, and all else is one form of product, C += A B with rows of A read number by number and
// rows of B and C in vectors. Sums over elements need the block the other way round, (ROWS, numbers), as their B.
//
// A call is one thread's part of a pass: it takes pieces of the sets until there are none left, and touches no memory
// but what it is given and its own.

#include "vectors.h"

namespace {

// z = (x - mean) / deviation of each element of x (D, ROWS); 1 / deviation, and where wanted the mean, are left.
template <class T>
void normalise(const T *x, long D, T eps, T *z, T *mean, T *inverse) {
  T sum[ROWS] = {}, square[ROWS] = {};
  for (long c = 0; c < D; c++)
    for (long r = 0; r < ROWS; r++) sum[r] += x[c * ROWS + r];
  for (long r = 0; r < ROWS; r++) mean[r] = sum[r] / T(D);
  for (long c = 0; c < D; c++)
    for (long r = 0; r < ROWS; r++) {
      const T d = x[c * ROWS + r] - mean[r];
      z[c * ROWS + r] = d;
      square[r] += d * d;
    }
  for (long r = 0; r < ROWS; r++) inverse[r] = T(1) / std::sqrt(square[r] / T(D) + eps);
  for (long c = 0; c < D; c++)
    for (long r = 0; r < ROWS; r++) z[c * ROWS + r] *= inverse[r];
}

// The same, the other way round.
template <class T>
void normalise_rows(T *x, long ld, const T *mean, const T *inverse) {
  for (long r = 0; r < ROWS; r++)
    for (long c = 0; c < ld; c++) x[r * ld + c] = (x[r * ld + c] - mean[r]) * inverse[r];
}

// The backward of LayerNorm without weights, (d - mean of d - z times the mean of d z) / deviation, in place.
template <class T>
void normalise_backward(T *d, const T *z, long D, const T *inverse) {
  T first[ROWS] = {}, second[ROWS] = {};
  for (long c = 0; c < D; c++)
    for (long r = 0; r < ROWS; r++) {
      first[r] += d[c * ROWS + r];
      second[r] += d[c * ROWS + r] * z[c * ROWS + r];
    }
  for (long r = 0; r < ROWS; r++) first[r] /= T(D), second[r] /= T(D);
  for (long c = 0; c < D; c++)
    for (long r = 0; r < ROWS; r++) {
      T &v = d[c * ROWS + r];
      v = (v - first[r] - z[c * ROWS + r] * second[r]) * inverse[r];
    }
}

template <class T>
void add_to_rows(long M, const T *bias, T *x) {
  for (long m = 0; m < M; m++)
    for (long r = 0; r < ROWS; r++) x[m * ROWS + r] += bias[m];
}

// ---------------------------------------------------------------------------------------------------- gather

// s = u . z + log m, for ROWS elements of which `rows` are there.
template <class T>
void scores(const T *points, long P, long D, const T *z, const T *log_m, long rows, T *s) {
  product<false>(P, ROWS, D, points, D, z, ROWS, s, ROWS);
  if (!log_m && rows == ROWS) return;
  T added[ROWS];
  for (long r = 0; r < ROWS; r++) added[r] = r < rows ? (log_m ? log_m[r] : T(0)) : T(-INFINITY);
  for (long p = 0; p < P; p++)
    for (long r = 0; r < ROWS; r++) s[p * ROWS + r] += added[r];
}

template <class T>
void exponentials(long P, const T *top, T *s) {
  for (long p = 0; p < P; p++) {
    const T peak = top[p] == T(-INFINITY) ? T(0) : top[p];
    for (long r = 0; r < ROWS; r += LANES<T>) store(s + p * ROWS + r, exponential<T>(load(s + p * ROWS + r) - peak));
  }
}

// The largest scores so far, and the sums measured against them.
template <class T>
void raise_peaks(long P, const T *s, T *peak, double *weight, Sum<T> &sum) {
  for (long p = 0; p < P; p++) {
    T most = peak[p];
    for (long r = 0; r < ROWS; r++) most = s[p * ROWS + r] > most ? s[p * ROWS + r] : most;
    if (most == peak[p]) continue;
    const double factor = std::exp(double(peak[p]) - double(most));
    weight[p] *= factor;
    for (long k = 0; k < sum.D; k++) {
      double &total = sum.total[p * sum.D + k];
      total = (total + sum.part[p * sum.ld + k]) * factor;
      sum.part[p * sum.ld + k] = 0;
    }
    peak[p] = most;
  }
}

// x (B, N, D), log_m (B, N) or none; of each slot: top (P,), c (P,), t (P, D).
template <class T, class E>
int gather(const E *x, const T *log_m, const T *points, T *top, double *weight, double *total, long N, long D, long P,
           long known, double eps, Pieces pieces) {
  const long ld = padded<T>(D);
  Space<T> space(ROWS * (2 * ld + P + 2) + P * ld + 256);
  if (!space.there()) return 1;
  T *row = space.take(ROWS * ld), *z = space.take(ROWS * ld), *s = space.take(ROWS * P);
  T *mean = space.take(ROWS), *inverse = space.take(ROWS), *part = space.take(P * ld);
  Piece piece;
  while (pieces.take(piece))
    for (long b = piece.b0; b < piece.b1; b++) {
      const long slot = piece.slot + b - piece.b0;
      T *peak = top + slot * P;
      double *c = weight + slot * P;
      Sum<T> t{part, total + slot * P * D, P, D, ld};
      long blocks = 0;
      for (long n = piece.n0; n < piece.n1; n += ROWS) {
        const long rows = piece.n1 - n < ROWS ? piece.n1 - n : ROWS;
        read(x + (b * N + n) * D, rows, D, ld, row, D);
        transpose(ROWS, ld, row, ld, z, ROWS);
        normalise(z, D, T(eps), z, mean, inverse);
        normalise_rows(row, ld, mean, inverse);
        scores(points, P, D, z, log_m ? log_m + b * N + n : nullptr, rows, s);
        if (!known) raise_peaks(P, s, peak, c, t);
        exponentials(P, peak, s);
        for (long p = 0; p < P; p++) c[p] += sum_of(s + p * ROWS);
        product<true>(P, ld, ROWS, s, ROWS, row, ld, part, ld);
        if (++blocks % EXACT == 0) t.flush();
      }
      t.flush();
    }
  return 0;
}

// d_t (B, P, D); after (B, D, 2 P) has d_t and the points, transposed. Out: d_x, d_log_m or none; sums of each piece.
template <class T, class E>
int gather_backward(const E *x, const T *log_m, const T *points, const T *top, const T *d_weight, const T *d_total,
                    const T *after, E *d_x, T *d_log_m, double *d_points, double *d_offsets, long N, long D, long P,
                    double eps, Pieces pieces) {
  const long ld = padded<T>(D);
  Space<T> space(ROWS * (3 * ld + 2 * P + 2) + P * ld + 256);
  if (!space.there()) return 1;
  T *row = space.take(ROWS * ld), *z = space.take(ROWS * ld), *d_z = space.take(ROWS * ld);
  T *both = space.take(ROWS * 2 * P), *mean = space.take(ROWS), *inverse = space.take(ROWS);
  T *w = both, *d_s = both + P * ROWS;
  T *part = space.take(P * ld);
  Piece piece;
  while (pieces.take(piece)) {
    Sum<T> sum{part, d_points + piece.number * P * D, P, D, ld};
    double *d_offset = d_offsets + piece.number * P;
    long blocks = 0;
    for (long b = piece.b0; b < piece.b1; b++)
      for (long n = piece.n0; n < piece.n1; n += ROWS) {
        const long rows = piece.n1 - n < ROWS ? piece.n1 - n : ROWS;
        read(x + (b * N + n) * D, rows, D, ld, row, D);
        transpose(ROWS, ld, row, ld, z, ROWS);
        normalise(z, D, T(eps), z, mean, inverse);
        normalise_rows(row, ld, mean, inverse);
        scores(points, P, D, z, log_m ? log_m + b * N + n : nullptr, rows, w);
        exponentials(P, top + b * P, w);
        product<false>(P, ROWS, D, d_total + b * P * D, D, z, ROWS, d_s, ROWS);
        for (long p = 0; p < P; p++)
          for (long r = 0; r < ROWS; r++)
            d_s[p * ROWS + r] = (d_s[p * ROWS + r] + d_weight[b * P + p]) * w[p * ROWS + r];  // (1), (2)
        if (d_log_m) {
          T d[ROWS] = {};
          for (long p = 0; p < P; p++)
            for (long r = 0; r < ROWS; r++) d[r] += d_s[p * ROWS + r];
          std::memcpy(d_log_m + b * N + n, d, rows * sizeof(T));  // (3)
        }
        for (long p = 0; p < P; p++) d_offset[p] += sum_of(d_s + p * ROWS);  // (4)
        product<true>(P, ld, ROWS, d_s, ROWS, row, ld, sum.part, ld);        // (5)
        if (d_x) {
          product<false>(D, ROWS, 2 * P, after + b * D * 2 * P, 2 * P, both, ROWS, d_z, ROWS);  // (6)
          normalise_backward(d_z, z, D, inverse);                                               // (7)
          transpose(ld, ROWS, d_z, ROWS, row, ld);
          write(row, rows, D, ld, d_x + (b * N + n) * D);
        }
        if (++blocks % EXACT == 0) sum.flush();
      }
    sum.flush();
  }
  return 0;
}

// ---------------------------------------------------------------------------------------------------- spread

// Softmax over the points of each head, in place.
template <class T>
void softmax(long heads, long points, T *s) {
  for (long h = 0; h < heads; h++, s += points * ROWS) {
    T most[ROWS], sum[ROWS] = {};
    std::memcpy(most, s, sizeof most);
    for (long p = 1; p < points; p++)
      for (long r = 0; r < ROWS; r++) most[r] = s[p * ROWS + r] > most[r] ? s[p * ROWS + r] : most[r];
    for (long p = 0; p < points; p++)
      for (long r = 0; r < ROWS; r += LANES<T>) {
        const Vec<T> e = exponential<T>(load(s + p * ROWS + r) - load(most + r));
        store(s + p * ROWS + r, e);
        store(sum + r, load(sum + r) + e);
      }
    for (long r = 0; r < ROWS; r++) sum[r] = T(1) / sum[r];
    for (long p = 0; p < points; p++)
      for (long r = 0; r < ROWS; r++) s[p * ROWS + r] *= sum[r];
  }
}

// Of each set: keys (P, D), offset (P,), values the other way round (D, P). FFN: w1 (F, D), b1, w2 (D, F), b2; F = 0:
// none.
template <class T, class E>
int spread(const E *x, const T *keys, const T *offset, const T *values, const T *w1, const T *b1, const T *w2,
           const T *b2, E *out, long N, long D, long P, long heads, long F, double eps, Pieces pieces) {
  const long ld = padded<T>(D);
  Space<T> space(ROWS * (3 * ld + P + F + 2) + 256);
  if (!space.there()) return 1;
  T *row = space.take(ROWS * ld), *y = space.take(ROWS * ld), *z = space.take(ROWS * ld);
  T *s = space.take(ROWS * P), *hidden = space.take(ROWS * F), *mean = space.take(ROWS), *inverse = space.take(ROWS);
  Piece piece;
  while (pieces.take(piece))
    for (long b = piece.b0; b < piece.b1; b++)
      for (long n = piece.n0; n < piece.n1; n += ROWS) {
        const long rows = piece.n1 - n < ROWS ? piece.n1 - n : ROWS;
        read(x + (b * N + n) * D, rows, D, ld, row, D);
        transpose(ROWS, ld, row, ld, y, ROWS);
        normalise(y, D, T(eps), z, mean, inverse);
        product<false>(P, ROWS, D, keys + b * P * D, D, z, ROWS, s, ROWS);
        add_to_rows(P, offset + b * P, s);
        softmax(heads, P / heads, s);
        product<true>(D, ROWS, P, values + b * D * P, P, s, ROWS, y, ROWS);
        if (F) {
          normalise(y, D, T(eps), z, mean, inverse);
          product<false>(F, ROWS, D, w1, D, z, ROWS, hidden, ROWS);
          for (long f = 0; f < F; f++)
            for (long r = 0; r < ROWS; r++) {
              const T h = hidden[f * ROWS + r] + b1[f];
              hidden[f * ROWS + r] = h < T(0) ? T(0) : h;
            }
          product<true>(D, ROWS, F, w2, F, hidden, ROWS, y, ROWS);
          add_to_rows(D, b2, y);
        }
        transpose(ld, ROWS, y, ROWS, row, ld);
        write(row, rows, D, ld, out + (b * N + n) * D);
      }
  return 0;
}

// Of each set also keys the other way round, (D, P), and values (P, D); of the FFN w1t (D, F) and w2t (F, D).
// d_out with its distances in memory. Out: d_x; of each slot d_keys (P, D), d_offset (P,) and d_values (P, D); of each
// piece d_w1 (F, D), d_b1, d_w2 the other way round, (F, D), and d_b2.
template <class T, class E>
int spread_backward(const E *x, const E *d_out, const T *keys, const T *keys_t, const T *offset, const T *values,
                    const T *values_t, const T *w1, const T *w1_t, const T *b1, const T *w2_t, E *d_x, double *d_keys,
                    double *d_offset, double *d_values, double *d_w1, double *d_b1s, double *d_w2, double *d_b2s,
                    long N, long D, long P, long heads, long F, long by_set, long by_row, long by_number, double eps,
                    Pieces pieces) {
  const long ld = padded<T>(D), per_head = P / heads;
  Space<T> space(ROWS * (7 * ld + 2 * P + 2 * F + 3) + (2 * P + 2 * F) * ld + 512);
  if (!space.there()) return 1;
  T *row = space.take(ROWS * ld), *d_row = space.take(ROWS * ld), *y = space.take(ROWS * ld);
  T *z = space.take(ROWS * ld), *u = space.take(ROWS * ld), *d_y = space.take(ROWS * ld), *d = space.take(ROWS * ld);
  T *w = space.take(ROWS * P), *d_s = space.take(ROWS * P);
  T *hidden = space.take(ROWS * F), *d_hidden = space.take(ROWS * F);
  T *mean = space.take(ROWS), *inverse = space.take(ROWS), *inverse_y = space.take(ROWS);
  T *part_k = space.take(P * ld), *part_v = space.take(P * ld), *part_1 = space.take(F * ld),
    *part_2 = space.take(F * ld);
  Piece piece;
  while (pieces.take(piece)) {
    const long i = piece.number;
    Sum<T> sum_1{part_1, d_w1 + i * F * D, F, D, ld}, sum_2{part_2, d_w2 + i * F * D, F, D, ld};
    double *d_b1 = d_b1s + i * F, *d_b2 = d_b2s + i * D;
    long blocks = 0;
    for (long b = piece.b0; b < piece.b1; b++) {
      const long slot = piece.slot + b - piece.b0;
      Sum<T> sum_k{part_k, d_keys + slot * P * D, P, D, ld}, sum_v{part_v, d_values + slot * P * D, P, D, ld};
      double *d_a = d_offset + slot * P;
      for (long n = piece.n0; n < piece.n1; n += ROWS) {
        const long rows = piece.n1 - n < ROWS ? piece.n1 - n : ROWS;
        read(x + (b * N + n) * D, rows, D, ld, row, D);
        transpose(ROWS, ld, row, ld, y, ROWS);
        normalise(y, D, T(eps), z, mean, inverse);
        normalise_rows(row, ld, mean, inverse);
        product<false>(P, ROWS, D, keys + b * P * D, D, z, ROWS, w, ROWS);
        add_to_rows(P, offset + b * P, w);
        softmax(heads, per_head, w);
        read(d_out + b * by_set + n * by_row, rows, D, ld, d_row, by_row, by_number);
        transpose(ROWS, ld, d_row, ld, d_y, ROWS);
        if (F) {
          product<true>(D, ROWS, P, values_t + b * D * P, P, w, ROWS, y, ROWS);
          normalise(y, D, T(eps), u, mean, inverse_y);
          product<false>(F, ROWS, D, w1, D, u, ROWS, hidden, ROWS);
          product<false>(F, ROWS, D, w2_t, D, d_y, ROWS, d_hidden, ROWS);
          for (long f = 0; f < F; f++) {
            for (long r = 0; r < ROWS; r++) {
              const T h = hidden[f * ROWS + r] + b1[f];
              hidden[f * ROWS + r] = h < T(0) ? T(0) : h;
              d_hidden[f * ROWS + r] = h > T(0) ? d_hidden[f * ROWS + r] : T(0);  // (2)
            }
            d_b1[f] += sum_of(d_hidden + f * ROWS);
          }
          for (long c = 0; c < D; c++) d_b2[c] += sum_of(d_y + c * ROWS);
          product<true>(F, ld, ROWS, hidden, ROWS, d_row, ld, part_2, ld);  // (1)
          product<false>(D, ROWS, F, w1_t, F, d_hidden, ROWS, d, ROWS);     // (4)
          transpose(ld, ROWS, u, ROWS, d_row, ld);
          product<true>(F, ld, ROWS, d_hidden, ROWS, d_row, ld, part_1, ld);  // (3)
          normalise_backward(d, u, D, inverse_y);
          for (long i = 0; i < D * ROWS; i++) d_y[i] += d[i];  // (5)
          transpose(ld, ROWS, d_y, ROWS, d_row, ld);
        }
        product<true>(P, ld, ROWS, w, ROWS, d_row, ld, part_v, ld);               // (6)
        product<false>(P, ROWS, D, values + b * P * D, D, d_y, ROWS, d_s, ROWS);  // (7)
        for (long h = 0; h < heads; h++) {
          T mixed[ROWS] = {};
          T *of_w = w + h * per_head * ROWS, *of_d = d_s + h * per_head * ROWS;
          for (long i = 0; i < per_head; i++)
            for (long r = 0; r < ROWS; r++) mixed[r] += of_w[i * ROWS + r] * of_d[i * ROWS + r];
          for (long i = 0; i < per_head; i++)
            for (long r = 0; r < ROWS; r++)
              of_d[i * ROWS + r] = of_w[i * ROWS + r] * (of_d[i * ROWS + r] - mixed[r]);  // (8)
        }
        for (long p = 0; p < P; p++) d_a[p] += sum_of(d_s + p * ROWS);          // (9)
        product<true>(P, ld, ROWS, d_s, ROWS, row, ld, part_k, ld);             // (9)
        product<false>(D, ROWS, P, keys_t + b * D * P, P, d_s, ROWS, d, ROWS);  // (10)
        normalise_backward(d, z, D, inverse);
        for (long i = 0; i < D * ROWS; i++) d_y[i] += d[i];  // (11)
        transpose(ld, ROWS, d_y, ROWS, row, ld);
        write(row, rows, D, ld, d_x + (b * N + n) * D);
        if (++blocks % EXACT == 0) sum_k.flush(), sum_v.flush(), sum_1.flush(), sum_2.flush();
      }
      sum_k.flush(), sum_v.flush();
    }
    sum_1.flush(), sum_2.flush();
  }
  return 0;
}

}  // namespace

#define EXPORTED(NAME, T, E)                                                                                           \
  extern "C" int gather_##NAME(ARGUMENTS) {                                                                            \
    return gather<T, E>((const E *)p[0], (const T *)p[1], (const T *)p[2], (T *)p[3], (double *)p[4], (double *)p[5],  \
                        n[0], n[1], n[2], n[3], real[0], PIECES);                                                      \
  }                                                                                                                    \
  extern "C" int gather_backward_##NAME(ARGUMENTS) {                                                                   \
    return gather_backward<T, E>((const E *)p[0], (const T *)p[1], (const T *)p[2], (const T *)p[3], (const T *)p[4],  \
                                 (const T *)p[5], (const T *)p[6], (E *)p[7], (T *)p[8], (double *)p[9],               \
                                 (double *)p[10], n[0], n[1], n[2], real[0], PIECES);                                  \
  }                                                                                                                    \
  extern "C" int spread_##NAME(ARGUMENTS) {                                                                            \
    return spread<T, E>((const E *)p[0], (const T *)p[1], (const T *)p[2], (const T *)p[3], (const T *)p[4],           \
                        (const T *)p[5], (const T *)p[6], (const T *)p[7], (E *)p[8], n[0], n[1], n[2], n[3], n[4],    \
                        real[0], PIECES);                                                                              \
  }                                                                                                                    \
  extern "C" int spread_backward_##NAME(ARGUMENTS) {                                                                   \
    return spread_backward<T, E>((const E *)p[0], (const E *)p[1], (const T *)p[2], (const T *)p[3], (const T *)p[4],  \
                                 (const T *)p[5], (const T *)p[6], (const T *)p[7], (const T *)p[8], (const T *)p[9],  \
                                 (const T *)p[10], (E *)p[11], (double *)p[12], (double *)p[13], (double *)p[14],      \
                                 (double *)p[15], (double *)p[16], (double *)p[17], (double *)p[18], n[0], n[1], n[2], \
                                 n[3], n[4], n[5], n[6], n[7], real[0], PIECES);                                       \
  }
EXPORTED(float32, float, float)
EXPORTED(float64, double, double)
EXPORTED(bfloat16, float, Half)
