// Attention blocks that follow each other, one small set after the other, by the formulas of small.py: such a set takes
// less time than Python takes to call its operations. Compiled as targets.py says.
//
// What is known of rows (queries x, or elements y) lies with them innermost, (numbers, rows), their number padded to a
// multiple of LANES. Scores lie as (heads, elements, queries). Padded queries have a gradient of 0, padded elements a
// weight of 0, so neither reaches anything.

#include <algorithm>

#include "vectors.h"

namespace {

// Weight and bias of the norms of x, y and the FFN, and of the six layers: query, key, value, output, first, second.
template <class T>
struct Weights {
  const T *norm[3][2], *layer[6][2];
  Weights(void **p) {
    int i = 0;
    auto pair = [&](const T **to) { to[0] = (const T *)p[i++], to[1] = (const T *)p[i++]; };
    pair(norm[0]), pair(norm[1]);
    for (int l = 0; l < 4; l++) pair(layer[l]);
    pair(norm[2]), pair(layer[4]), pair(layer[5]);
  }
};
enum Layer { QUERY, KEY, VALUE, OUTPUT, FIRST, SECOND };

struct Sizes {
  long Q, N, D, H, F;  // queries, elements, width, heads, width of the FFN (0: none)
  bool shared;         // all sets have the same queries
};

// z = (x - mean) / deviation and z w + b, of the columns of x (D, R), of which `rows` are there: z of the others is 0.
template <class T>
void normalise(const T *x, long D, long rows, long R, T eps, const T *const *affine, T *z, T *normed, T *inverse) {
  for (long r = 0; r < R; r += LANES<T>) {
    Vec<T> sum = {}, square = {};
    for (long c = 0; c < D; c++) sum += load(x + c * R + r);
    const Vec<T> mean = sum / T(D);
    for (long c = 0; c < D; c++) {
      const Vec<T> d = load(x + c * R + r) - mean;
      store(z + c * R + r, d);
      square += d * d;
    }
    for (long l = 0; l < LANES<T>; l++)
      inverse[r + l] = r + l < rows ? T(1) / std::sqrt(square[l] / T(D) + eps) : T(0);
    for (long c = 0; c < D; c++) {
      const Vec<T> v = load(z + c * R + r) * load(inverse + r);
      store(z + c * R + r, v);
      store(normed + c * R + r, v * affine[0][c] + affine[1][c]);
    }
  }
}

// From the gradient of z w + b, in place, to that of x: (d - mean of d - z times the mean of d z) / deviation, where d
// is the gradient of z; and to those of w and b.
template <class T>
void normalise_backward(T *d, const T *z, long D, long R, const T *w, const T *inverse, T *d_w, T *d_b) {
  for (long c = 0; c < D; c++) {
    Vec<T> of_w = {}, of_b = {};
    for (long r = 0; r < R; r += LANES<T>) {
      const Vec<T> v = load(d + c * R + r);
      of_w += v * load(z + c * R + r), of_b += v;
      store(d + c * R + r, v * w[c]);
    }
    for (long l = 0; l < LANES<T>; l++) d_w[c] += of_w[l], d_b[c] += of_b[l];
  }
  for (long r = 0; r < R; r += LANES<T>) {
    Vec<T> first = {}, second = {};
    for (long c = 0; c < D; c++) {
      const Vec<T> v = load(d + c * R + r);
      first += v, second += v * load(z + c * R + r);
    }
    first /= T(D), second /= T(D);
    for (long c = 0; c < D; c++) {
      const Vec<T> v = load(d + c * R + r);
      store(d + c * R + r, (v - first - load(z + c * R + r) * second) * load(inverse + r));
    }
  }
}

// y (M, R) = or += W x + b, of x (K, R).
template <bool ADD, class T>
void linear(const T *const *layer, long M, long K, long R, const T *x, T *y) {
  product<ADD>(M, R, K, layer[0], K, x, R, y, R);
  for (long m = 0; m < M; m++)
    for (long r = 0; r < R; r += LANES<T>) store(y + m * R + r, load(y + m * R + r) + layer[1][m]);
}

// Sums of the gradient of a layer (M, K), over the sets of a piece; its part is that of one set.
template <class T>
struct LayerSum {
  T *weight, *bias, *part;  // part: the weight's, padded; the weight itself where there is nothing to pad
  long M, K, ld;
  // From d (M, R), with x transposed, (R, ld).
  void add(const T *d, const T *x_t, long R) {
    product<true>(M, ld, R, d, R, x_t, ld, part, ld);
    for (long m = 0; m < M; m++) bias[m] += sum_of(d + m * R, R);
  }
  void finish() {
    if (part == weight) return;
    for (long m = 0; m < M; m++)
      for (long k = 0; k < K; k++) weight[m * K + k] += part[m * ld + k];
  }
};

// Memory that is cut up.
template <class T>
struct Cut {
  T *next;
  bool zeros;  // whether rows that pad are set to 0
  T *take(long numbers) { return (next += numbers) - numbers; }
  // (numbers, R), padded to a multiple of LANES.
  T *rows(long numbers, long R) {
    const long missing = padded<T>(numbers) - numbers;
    T *taken = take((numbers + missing) * R);
    if (zeros) std::memset(taken + numbers * R, 0, missing * R * sizeof(T));
    return taken;
  }
};

// The steps of one set.
template <class T>
class Steps {
 public:
  const Sizes s;
  const long Qp, Np, ld, lf, width;        // padded queries, elements, D and F; width of a head
  T *x, *y, *h, *out, *row;                // needed for a moment: rows, sums after the attention, the output
  T *zx, *xn, *ix, *q;                     // of the queries alone: z, normed, 1 / deviation, the projection; x if shared
  T *zy, *yn, *iy, *k, *v, *w, *a;         // of the set: the same of the elements, weights, averages of the heads
  T *zh, *hn, *ih, *t;                     // of the FFN: z, normed, 1 / deviation, after the activation

  static long of_queries(const Sizes &s) { return ((s.shared ? 4 : 3) * padded<T>(s.D) + 1) * padded<T>(s.Q); }
  static long of_set(const Sizes &s) {
    const long Q = padded<T>(s.Q), N = padded<T>(s.N), ld = padded<T>(s.D), lf = padded<T>(s.F);
    return (4 * ld + 1) * N + s.H * N * Q + (3 * ld + lf + 1) * Q;
  }
  static long of_row(const Sizes &s) {
    return std::max(padded<T>(s.Q), padded<T>(s.N)) * std::max(padded<T>(s.D), padded<T>(s.F));
  }
  static long of_moment(const Sizes &s) {
    return padded<T>(s.D) * (3 * padded<T>(s.Q) + padded<T>(s.N)) + of_row(s);
  }

  // memory: of `of_moment` numbers.
  Steps(const Sizes &s, T *memory)
      : s(s), Qp(padded<T>(s.Q)), Np(padded<T>(s.N)), ld(padded<T>(s.D)), lf(padded<T>(s.F)), width(s.D / s.H) {
    Cut<T> cut{memory, true};
    for (T **rows : {&x, &h, &out}) *rows = cut.rows(s.D, Qp);
    y = cut.rows(s.D, Np), row = cut.take(of_row(s));
  }

  // Where the steps lie; with `zeros` they are about to be computed.
  void lay_out_queries(T *memory, bool zeros) {
    Cut<T> cut{memory, zeros};
    for (T **rows : {&zx, &xn, &q}) *rows = cut.rows(s.D, Qp);
    ix = cut.take(Qp);
    if (s.shared) x = cut.rows(s.D, Qp);
  }
  void lay_out_set(T *memory, bool zeros) {
    Cut<T> cut{memory, zeros};
    for (T **rows : {&zy, &yn, &k, &v}) *rows = cut.rows(s.D, Np);
    iy = cut.take(Np);
    w = cut.take(s.H * Np * Qp);
    for (long head = 0; zeros && head < s.H; head++)
      std::memset(w + (head * Np + s.N) * Qp, 0, (Np - s.N) * Qp * sizeof(T));
    for (T **rows : {&a, &zh, &hn}) *rows = cut.rows(s.D, Qp);
    t = cut.rows(s.F, Qp);
    ih = cut.take(Qp);
  }

  // From (number, D) to (D, R).
  void columns(const T *from, long number, long R, T *to, long by_row, long by_number = 1) {
    read(from, number, s.D, ld, row, by_row, by_number, R);
    for (long r = 0; ld > s.D && r < number; r++) std::memset(row + r * ld + s.D, 0, (ld - s.D) * sizeof(T));
    transpose(R, ld, row, ld, to, R);
  }

  // From (D, R) to (number, D), with `add` to what is there; 0 up to `all`, of a set that has fewer than others.
  void rows(const T *from, long number, long R, T *to, long all, bool add = false) {
    transpose(ld, R, from, R, row, ld);
    for (long r = 0; add && r < number; r++)
      for (long c = 0; c < s.D; c++) row[r * ld + c] += to[r * s.D + c];
    write(row, number, s.D, ld, to);
    if (!add) std::memset(to + number * s.D, 0, (all - number) * s.D * sizeof(T));
  }

  void ask(const T *queries, const Weights<T> &weights, const double *real) {
    columns(queries, s.Q, Qp, x, s.D);
    normalise(x, s.D, s.Q, Qp, T(real[1]), weights.norm[0], zx, xn, ix);
    linear<false>(weights.layer[QUERY], s.D, s.D, Qp, xn, q);
    for (long i = 0; i < s.D * Qp; i++) q[i] *= T(real[0]);
  }

  void see(const T *elements, const Weights<T> &weights, const double *real) {
    columns(elements, s.N, Np, y, s.D);
    normalise(y, s.D, s.N, Np, T(real[2]), weights.norm[1], zy, yn, iy);
    linear<false>(weights.layer[KEY], s.D, s.D, Np, yn, k);
    linear<false>(weights.layer[VALUE], s.D, s.D, Np, yn, v);
  }

  void attend(const T *multiplicity) {
    if (empty(multiplicity)) {
      std::memset(a, 0, s.D * Qp * sizeof(T));
      return;
    }
    for (long head = 0; head < s.H; head++) {
      T *of_head = w + head * Np * Qp;
      product<false, true>(s.N, Qp, width, k + head * width * Np, Np, q + head * width * Qp, Qp, of_head, Qp);
      for (long n = 0; multiplicity && n < s.N; n++) {
        const T log_m = std::log(multiplicity[n]);
        for (long r = 0; r < Qp; r++) of_head[n * Qp + r] += log_m;
      }
      softmax(of_head);
      product<false>(width, Qp, s.N, v + head * width * Np, Np, of_head, Qp, a + head * width * Qp, Qp);
    }
  }

  bool empty(const T *multiplicity) const {
    for (long n = 0; n < s.N; n++)
      if (!multiplicity || !(multiplicity[n] <= T(0))) return false;
    return true;
  }

  void answer(const Weights<T> &weights, const double *real) {
    std::memcpy(h, x, s.D * Qp * sizeof(T));
    linear<true>(weights.layer[OUTPUT], s.D, s.D, Qp, a, h);
    std::memcpy(out, h, s.D * Qp * sizeof(T));
    if (!s.F) return;
    normalise(h, s.D, s.Q, Qp, T(real[3]), weights.norm[2], zh, hn, ih);
    linear<false>(weights.layer[FIRST], s.F, s.D, Qp, hn, t);
    for (long i = 0; i < s.F * Qp; i++) t[i] = t[i] < T(0) ? T(0) : t[i];
    linear<true>(weights.layer[SECOND], s.D, s.F, Qp, t, out);
  }

 private:
  // Over the elements, in place.
  void softmax(T *scores) {
    for (long r = 0; r < Qp; r += LANES<T>) {
      Vec<T> most = load(scores + r), sum = {};
      for (long n = 1; n < s.N; n++) {
        const Vec<T> v = load(scores + n * Qp + r);
        most = v > most ? v : most;
      }
      for (long n = 0; n < s.N; n++) {
        const Vec<T> e = exponential<T>(load(scores + n * Qp + r) - most);
        store(scores + n * Qp + r, e);
        sum += e;
      }
      sum = T(1) / sum;
      for (long n = 0; n < s.N; n++) store(scores + n * Qp + r, load(scores + n * Qp + r) * sum);
    }
  }
};

// Of a set, numbers that the gradient needs of a block.
template <class T>
long kept(const Sizes &s) {
  return Steps<T>::of_set(s) + (s.shared ? 0 : Steps<T>::of_queries(s));
}

// What is given of all blocks, then of each (numbers: of its largest set, whether queries and elements are those of the
// set, whether these are weighed, the distances of d_out in memory, what gradients are added to), then lengths of sets.
constexpr long GIVEN = 4, OF_BLOCK = 12, ARRAYS = 4, TENSORS = 18;

// Of block i for set b.
inline Sizes sizes(const long *n, long i, long b) {
  const long *of = n + GIVEN + OF_BLOCK * i, length = n[GIVEN + OF_BLOCK * n[0] + b];
  return Sizes{of[5] ? length : of[0], of[6] ? length : of[1], n[2], of[2], of[3], of[4] != 0};
}

// For the largest set.
inline Sizes largest(const long *n, long i) {
  const long *of = n + GIVEN + OF_BLOCK * i;
  return Sizes{of[0], of[1], n[2], of[2], of[3], of[4] != 0};
}

template <class T>
struct Block {
  const long *n;
  Sizes s, most;
  T **arrays;
  const double *real;
  Weights<T> weights;
  Block(void **p, const long *all, const double *real, long i, long b)
      : n(all + GIVEN + OF_BLOCK * i),
        s(sizes(all, i, b)),
        most(largest(all, i)),
        arrays((T **)p + 3 + i * (ARRAYS + TENSORS)),
        real(real + 4 * i),
        weights((void **)arrays + ARRAYS) {}
  T *queries(int array, long b) const { return arrays[array] + (s.shared ? 0 : b * most.Q * s.D); }
  T *elements(int array, long b) const { return arrays[array] + b * most.N * s.D; }
  const T *multiplicity(void **p, long b) const { return n[7] ? (const T *)p[0] + b * most.N : nullptr; }
};

// Numbers that are kept of set b.
template <class T>
long kept(const long *n, long b) {
  long sum = 0;
  for (long i = 0; i < n[0]; i++) sum += kept<T>(sizes(n, i, b));
  return sum;
}

// Memory of a thread: for a moment, for queries that all sets share, which it asks at once, and for a set.
template <class T>
struct Room {
  long moment = 0, shared = 0, set = 0;
  T *of_moment, *of_shared;
  explicit Room(const long *n) {
    for (long i = 0; i < n[0]; i++) {
      const Sizes s = largest(n, i);
      moment = std::max(moment, Steps<T>::of_moment(s)), set = std::max(set, kept<T>(s));
      shared += s.shared ? Steps<T>::of_queries(s) : 0;
    }
  }
  void ask(void **p, const long *n, const double *real, Space<T> &space) {
    T *at = of_shared = space.take(shared);
    of_moment = space.take(moment);
    for (long i = 0; i < n[0]; i++) {
      const Block<T> block(p, n, real, i, 0);
      if (!block.s.shared) continue;
      Steps<T> steps(block.s, of_moment);
      steps.lay_out_queries(at, true);
      steps.ask(block.arrays[0], block.weights, block.real);
      at += Steps<T>::of_queries(block.s);
    }
  }
};

// Multiplicity (B, N) or none, what is kept of each set or none; of each block queries (B or 1, Q, D), elements (B, N,
// D), out (B, Q, D), and the weights. real: of each block scale and the three eps.
template <class T>
int block(void **p, const long *n, const double *real, Pieces pieces) {
  T *keep = (T *)p[1];
  Room<T> room(n);
  Space<T> space(room.moment + room.shared + (keep ? 0 : room.set) + 64, false);
  if (!space.there()) return 1;
  room.ask(p, n, real, space);
  T *here = space.take(keep ? 0 : room.set);
  Piece piece;
  while (pieces.take(piece)) {
    if (keep) here = keep;
    for (long b = 0; keep && b < piece.b0; b++) here += kept<T>(n, b);
    for (long b = piece.b0; b < piece.b1; b++) {
      T *shared = room.of_shared;
      for (long i = 0; i < n[0]; i++) {
        const Block<T> block(p, n, real, i, b);
        Steps<T> steps(block.s, room.of_moment);
        steps.lay_out_set(here, true);
        if (block.s.shared) {
          steps.lay_out_queries(shared, false);
          shared += Steps<T>::of_queries(block.s);
        } else {
          steps.lay_out_queries(here + Steps<T>::of_set(block.s), true);
          steps.ask(block.queries(0, b), block.weights, block.real);
        }
        steps.see(block.elements(1, b), block.weights, block.real);
        steps.attend(block.multiplicity(p, b));
        steps.answer(block.weights, block.real);
        steps.rows(steps.out, block.s.Q, steps.Qp, block.arrays[2] + b * block.most.Q * block.s.D, block.most.Q);
        if (keep) here += kept<T>(block.s);
      }
    }
  }
  return 0;
}

// Memory for the gradient of one set, and for the sums of its layers that have to be padded.
template <class T>
struct Gradients {
  T *h, *a, *q, *x, *k, *v, *y, *w, *turned, *t, *in, *parts[6];
  static long numbers(const Sizes &s) {
    const long Q = padded<T>(s.Q), N = padded<T>(s.N), ld = padded<T>(s.D), lf = padded<T>(s.F);
    return 4 * ld * Q + 3 * ld * N + 2 * N * Q + lf * Q + Steps<T>::of_row(s) + 4 * s.D * ld + s.F * ld + s.D * lf;
  }
  Gradients(const Sizes &s, T *memory) {
    const long Q = padded<T>(s.Q), N = padded<T>(s.N);
    Cut<T> cut{memory, true};
    for (T **rows : {&h, &a, &q, &x}) *rows = cut.rows(s.D, Q);
    for (T **rows : {&k, &v, &y}) *rows = cut.rows(s.D, N);
    w = cut.take(N * Q);
    std::memset(w + s.N * Q, 0, (N - s.N) * Q * sizeof(T));
    turned = cut.take(N * Q), t = cut.rows(s.F, Q), in = cut.take(Steps<T>::of_row(s));
    for (int l = 0; l < 6; l++) {
      const long rows = l == FIRST ? s.F : s.D, columns = l == SECOND ? s.F : s.D, ld = padded<T>(columns);
      parts[l] = ld == columns ? nullptr : cut.take(rows * ld);
      if (parts[l]) std::memset(parts[l], 0, rows * ld * sizeof(T));
    }
  }
};

// The sums of a piece, in the order of `Weights`.
template <class T>
struct Sums {
  T *queries, *norm[3][2];  // queries: if all sets share them
  LayerSum<T> layer[6];
  int layers;
  Sums(const Sizes &s, T *memory, T *const *parts) : layers(s.F ? 6 : 4) {
    Cut<T> cut{memory, false};
    auto take_norm = [&](int i) { norm[i][0] = cut.take(s.D), norm[i][1] = cut.take(s.D); };
    auto take_layer = [&](int l, long M, long K) {
      T *weight = cut.take(M * K), *bias = cut.take(M);
      layer[l] = LayerSum<T>{weight, bias, parts[l] ? parts[l] : weight, M, K, padded<T>(K)};
    };
    queries = cut.take(s.shared ? s.Q * s.D : 0);
    take_norm(0), take_norm(1);
    for (int l = QUERY; l <= OUTPUT; l++) take_layer(l, s.D, s.D);
    if (s.F) take_norm(2), take_layer(FIRST, s.F, s.D), take_layer(SECOND, s.D, s.F);
  }
  static long numbers(const Sizes &s) {
    const long of_ffn = s.F ? 2 * s.D + 2 * s.F * s.D + s.F + s.D : 0;
    return (s.shared ? s.Q * s.D : 0) + 4 * s.D + 4 * s.D * (s.D + 1) + of_ffn;
  }
  void finish() {
    for (int l = 0; l < layers; l++) layer[l].finish();
  }
};

template <class T>
void add_to(T *x, const T *y, long numbers) {
  for (long i = 0; i < numbers; i++) x[i] += y[i];
}

// From d.h, the gradient of the output, to that of h.
template <class T>
void answer_backward(const Steps<T> &steps, const Weights<T> &weights, Gradients<T> &d, Sums<T> &sums) {
  const Sizes &s = steps.s;
  const long Q = steps.Qp;
  transpose(steps.lf, Q, steps.t, Q, d.in, steps.lf);
  sums.layer[SECOND].add(d.h, d.in, Q);
  product<false, true>(s.F, Q, s.D, weights.layer[SECOND][0], s.F, d.h, Q, d.t, Q);
  for (long i = 0; i < s.F * Q; i++) d.t[i] = steps.t[i] > T(0) ? d.t[i] : T(0);
  transpose(steps.ld, Q, steps.hn, Q, d.in, steps.ld);
  sums.layer[FIRST].add(d.t, d.in, Q);
  product<false, true>(s.D, Q, s.F, weights.layer[FIRST][0], s.D, d.t, Q, d.a, Q);
  normalise_backward(d.a, steps.zh, s.D, Q, weights.norm[2][0], steps.ih, sums.norm[2][0], sums.norm[2][1]);
  add_to(d.h, d.a, s.D * Q);
}

// From d.a, the gradient of the averages, to those of queries (scaled), keys and values.
template <class T>
void attend_backward(const Steps<T> &steps, Gradients<T> &d, T scale) {
  const Sizes &s = steps.s;
  const long Q = steps.Qp, N = steps.Np, width = steps.width;
  for (long head = 0; head < s.H; head++) {
    const long of_queries = head * width * Q, of_elements = head * width * N;
    const T *w = steps.w + head * N * Q, *d_a = d.a + of_queries;
    transpose(N, Q, w, Q, d.turned, N);
    product<false>(width, N, Q, d_a, Q, d.turned, N, d.v + of_elements, N);
    product<false, true>(s.N, Q, width, steps.v + of_elements, N, d_a, Q, d.w, Q);
    for (long r = 0; r < Q; r += LANES<T>) {  // softmax
      Vec<T> mixed = {};
      for (long n = 0; n < s.N; n++) mixed += load(w + n * Q + r) * load(d.w + n * Q + r);
      for (long n = 0; n < s.N; n++)
        store(d.w + n * Q + r, load(w + n * Q + r) * (load(d.w + n * Q + r) - mixed));
    }
    product<false>(width, Q, s.N, steps.k + of_elements, N, d.w, Q, d.q + of_queries, Q);
    transpose(N, Q, d.w, Q, d.turned, N);
    product<false>(width, N, Q, steps.q + of_queries, Q, d.turned, N, d.k + of_elements, N);
  }
  for (long i = 0; i < s.D * Q; i++) d.q[i] *= scale;
}

// The gradient of one block, for set b. Queries first, as elements may be the same.
template <class T>
void block_backward(void **p, const Block<T> &block, Steps<T> &steps, Gradients<T> &d, Sums<T> &sums, long b) {
  const Sizes &s = block.s;
  const Weights<T> &weights = block.weights;
  const long Q = steps.Qp, N = steps.Np, ld = steps.ld;
  steps.columns(block.arrays[1] + b * block.n[8], s.Q, Q, d.h, block.n[9], block.n[10]);
  if (s.F) answer_backward(steps, weights, d, sums);
  transpose(ld, Q, steps.a, Q, d.in, ld);
  sums.layer[OUTPUT].add(d.h, d.in, Q);
  const bool empty = steps.empty(block.multiplicity(p, b));
  if (!empty) {
    product<false, true>(s.D, Q, s.D, weights.layer[OUTPUT][0], s.D, d.h, Q, d.a, Q);
    attend_backward(steps, d, T(block.real[0]));
    transpose(ld, Q, steps.xn, Q, d.in, ld);
    sums.layer[QUERY].add(d.q, d.in, Q);
    product<false, true>(s.D, Q, s.D, weights.layer[QUERY][0], s.D, d.q, Q, d.x, Q);
    normalise_backward(d.x, steps.zx, s.D, Q, weights.norm[0][0], steps.ix, sums.norm[0][0], sums.norm[0][1]);
    add_to(d.h, d.x, s.D * Q);
    transpose(ld, N, steps.yn, N, d.in, ld);
    sums.layer[KEY].add(d.k, d.in, N), sums.layer[VALUE].add(d.v, d.in, N);
    product<false, true>(s.D, N, s.D, weights.layer[KEY][0], s.D, d.k, N, d.y, N);
    product<true, true>(s.D, N, s.D, weights.layer[VALUE][0], s.D, d.v, N, d.y, N);
    normalise_backward(d.y, steps.zy, s.D, N, weights.norm[1][0], steps.iy, sums.norm[1][0], sums.norm[1][1]);
  }
  if (s.shared)
    steps.rows(d.h, s.Q, Q, sums.queries, s.Q, true);
  else
    steps.rows(d.h, s.Q, Q, block.queries(2, b), block.most.Q, block.n[11] & 1);
  if (!empty)
    steps.rows(d.y, s.N, N, block.elements(3, b), block.most.N, block.n[11] & 2);
  else if (!(block.n[11] & 2))
    std::memset(block.elements(3, b), 0, block.most.N * s.D * sizeof(T));
}

// Multiplicity, what was kept, sums of each piece, of n[3] numbers, which are 0 before; of each block queries, d_out,
// d_queries (B, Q, D) or none where they are shared, d_elements (B, N, D), and the weights.
template <class T>
int block_backward(void **p, const long *n, const double *real, Pieces pieces) {
  Room<T> room(n);
  long most = 0;
  for (long i = 0; i < n[0]; i++) most = std::max(most, Gradients<T>::numbers(largest(n, i)));
  Space<T> space(room.moment + room.shared + most + 64, false);
  if (!space.there()) return 1;
  room.ask(p, n, real, space);
  T *memory = space.take(most);
  Piece piece;
  while (pieces.take(piece)) {
    T *end = (T *)p[1];
    for (long b = 0; b < piece.b0; b++) end += kept<T>(n, b);
    for (long b = piece.b0; b < piece.b1; b++) {
      end += kept<T>(n, b);
      T *here = end, *shared = room.of_shared + room.shared, *of_sums = (T *)p[2] + (piece.number + 1) * n[3];
      for (long i = n[0] - 1; i >= 0; i--) {
        const Block<T> block(p, n, real, i, b);
        Steps<T> steps(block.s, room.of_moment);
        steps.lay_out_set(here -= kept<T>(block.s), false);
        if (block.s.shared)
          steps.lay_out_queries(shared -= Steps<T>::of_queries(block.s), false);
        else
          steps.lay_out_queries(here + Steps<T>::of_set(block.s), false);
        Gradients<T> d(block.s, memory);
        Sums<T> sums(block.s, of_sums -= Sums<T>::numbers(block.s), d.parts);
        block_backward(p, block, steps, d, sums, b);
        sums.finish();
      }
    }
  }
  return 0;
}

}  // namespace

#define EXPORTED(NAME, T)                                                                          \
  extern "C" long block_kept_##NAME(const long *n) {                                               \
    long sum = 0;                                                                                  \
    for (long b = 0; b < n[1]; b++) sum += kept<T>(n, b);                                          \
    return sum;                                                                                    \
  }                                                                                                \
  extern "C" int block_##NAME(ARGUMENTS) { return block<T>(p, n, real, PIECES); }                  \
  extern "C" int block_backward_##NAME(ARGUMENTS) { return block_backward<T>(p, n, real, PIECES); }
EXPORTED(float32, float)
EXPORTED(float64, double)
