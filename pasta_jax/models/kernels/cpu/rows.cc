// A few rows' products with large matrices, and their attention to a pool, for decoding on the CPU; called by XLA.
//
// A decoding step reads every weight of a model for each of its few rows. Here they are read once for all rows. A
// matrix is packed in panels of 32 outputs, [O/32][I][32]: a panel is one run of memory, and the sums of its 32 outputs
// stay in registers for up to 8 rows while it is read. Weights may be bfloat16, or codes of 8, 6 or 4 bits, decoded
// there; with AVX2, codes are multiplied as integers. A sum adds its products in the order of the inputs, whatever the
// number of rows and of threads, so a row's result doesn't depend on its neighbours.
//
// Attention goes through the slots that a row sees, and no others: XLA's would compute all rows of all lanes with the
// slots of the fullest one.
//
// level.h is included once for each instruction set; the machine's best is chosen when the library is loaded.

#if defined(__x86_64__)
#include <immintrin.h>
#if __has_include(<avxvnniintrin.h>) && !defined(WITHOUT_AVXVNNI)
#define HAS_AVXVNNI  // of the compiler
#endif
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "operands.h"
#if defined(__x86_64__)
#include "processor.h"
#endif
#include "threads.h"
#include "xla/ffi/api/ffi.h"

#define TOGETHER inline __attribute__((always_inline))

#define TARGET
#define LEVEL portable  // SSE2 or NEON: what every machine of the architecture has
#define LANES 4
#define SUMS 12
#include "level.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define LEVEL avx2
#define LANES 8
#define SUMS 12
#include "level.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define LEVEL avx512
#define LANES 16
#define SUMS 16
#include "level.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define LEVEL avx2
#define INTEGERS plain
#define HAS_VNNI 0
#define LANES 8
#include "integers.h"

#ifdef HAS_AVXVNNI
#define TARGET __attribute__((target("avxvnni,avx2,fma,f16c")))
#define LEVEL avx2
#define INTEGERS vnni
#define HAS_VNNI 1
#define LANES 8
#include "integers.h"
#endif

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))
#define LEVEL avx512
#define INTEGERS vnni
#define HAS_VNNI 1
#define LANES 16
#include "integers.h"
#endif

#include "multiply.h"
//
#include "draw.h"

namespace {

namespace ffi = xla::ffi;

using Dimensions = ffi::Span<const int64_t>;

ffi::Error unfit() {
  return ffi::Error::InvalidArgument("pasta_jax: rows, panels and result don't fit; pack the matrix as calls.py does");
}

bool are(Dimensions sizes, int64_t first, int64_t second, int64_t third) {
  return sizes[0] == first && sizes[1] == second && sizes[2] == third;
}

ffi::Error product(ffi::BufferR2<ffi::F32> x, ffi::AnyBuffer w, ffi::ResultBufferR2<ffi::F32> y) {
  const auto xs = x.dimensions(), ws = w.dimensions(), ys = y->dimensions();
  const bool is_half = w.element_type() == ffi::BF16;
  if (xs[0] != ys[0] || ws.size() != 3 || !(is_half || w.element_type() == ffi::F32) ||
      !are(ws, (ys[1] + PANEL - 1) / PANEL, xs[1], PANEL)) {
    return unfit();
  }
  Matrix matrix{};
  matrix.kind = is_half ? HALVES : NUMBERS;
  matrix.numbers = static_cast<const float*>(w.untyped_data());
  matrix.halves = static_cast<const uint16_t*>(w.untyped_data());
  matrix.inputs = xs[1];
  multiply(x.typed_data(), matrix, nullptr, y->typed_data(), xs[0], ys[1], 32);
  return ffi::Error::Success();
}

// A matrix's scales, or its minimums; none without elements. `factors` have none unless these are bytes.
ffi::ErrorOr<Scales> scales_of(ffi::AnyBuffer stored, ffi::AnyBuffer factors, int64_t panels, int64_t groups) {
  const auto sizes = stored.dimensions(), of_blocks = factors.dimensions();
  const auto type = stored.element_type();
  Scales scales{};
  if (stored.element_count() == 0) return scales;
  if (sizes.size() != 3 || !are(sizes, panels, groups, PANEL)) return ffi::Unexpected(unfit());
  if (type == ffi::F32) scales.numbers = static_cast<const float*>(stored.untyped_data());
  if (type == ffi::F16) scales.halves = static_cast<const uint16_t*>(stored.untyped_data());
  if (type == ffi::S8) {
    if (factors.element_type() != ffi::F16 || of_blocks.size() != 3 || of_blocks[1] < 1 || groups % of_blocks[1] != 0 ||
        !are(of_blocks, panels, of_blocks[1], PANEL)) {
      return ffi::Unexpected(unfit());
    }
    scales.small = static_cast<const int8_t*>(stored.untyped_data());
    scales.factors = static_cast<const uint16_t*>(factors.untyped_data());
  }
  if (!scales.are_there() || (type != ffi::S8 && factors.element_count() != 0)) return ffi::Unexpected(unfit());
  return scales;
}

// `minimums`, `factors`, `floors`, `a` and `b` are empty where the matrix has none.
ffi::Error coded_product(ffi::BufferR2<ffi::F32> x, ffi::AnyBuffer codes, ffi::AnyBuffer scales,
                         ffi::AnyBuffer minimums, ffi::AnyBuffer factors, ffi::AnyBuffer floors,
                         ffi::BufferR2<ffi::F32> a, ffi::BufferR3<ffi::F32> b, ffi::BufferR0<ffi::S32> bits,
                         ffi::ResultBufferR2<ffi::F32> y) {
  const auto xs = x.dimensions(), ss = scales.dimensions(), ys = y->dimensions(), cs = codes.dimensions();
  const int64_t panels = (ys[1] + PANEL - 1) / PANEL, inputs = xs[1], rank = a.dimensions()[0];
  if (xs[0] != ys[0] || codes.element_type() != ffi::U32 || cs.size() != 4 || ss.size() != 3 || ss[1] < 1 || inputs % ss[1] != 0 || inputs / ss[1] % STEP != 0 ||
      !(rank == 0 || (a.dimensions()[1] == inputs && are(b.dimensions(), panels, rank, PANEL)))) {
    return unfit();
  }
  Matrix matrix{};
  for (Kind kind : {NIBBLES, SIXES, BYTES}) {
    if (cs[2] == words_of(kind)) matrix.kind = kind;
  }
  const auto of_scales = scales_of(scales, factors, panels, ss[1]);
  const auto of_minimums = scales_of(minimums, floors, panels, ss[1]);
  if (!matrix.has_codes() || cs[3] != PANEL || !are(cs, panels, inputs / STEP, words_of(matrix.kind)) || !of_scales || !of_scales->are_there() || !of_minimums ||
      (of_minimums->small != nullptr && (of_scales->small == nullptr || factors.dimensions()[1] != floors.dimensions()[1]))) {
    return unfit();
  }
  matrix.words = static_cast<const uint32_t*>(codes.untyped_data());
  matrix.scales = *of_scales, matrix.minimums = *of_minimums;
  matrix.up = b.typed_data();
  matrix.inputs = inputs, matrix.group = inputs / ss[1], matrix.rank = rank;
  matrix.block = of_scales->small == nullptr ? inputs : inputs / factors.dimensions()[1];
  multiply(x.typed_data(), matrix, a.typed_data(), y->typed_data(), xs[0], ys[1], *bits.typed_data());
  return ffi::Error::Success();
}

using Queries = ffi::Buffer<ffi::F32, 5>;

// q and out [B, T, K, G, D], k and v [L, K, S, D], of whose lanes each row has one [B, T]. It sees `counts` [B, T] slots,
// the first of `seen` [B, T, S], and its sums add up in their order. The result of a row that sees nothing is zero.
struct Attention {
  const float *q, *k, *v;
  const int32_t *lanes, *seen, *counts;
  float* out;
  int64_t rows, heads, groups, slots, dims, pool_lanes;
  float scale, cap;
};

void attend(const Attention& a) {
  const Attend one = chosen.load()->attend;
  pool().run(a.rows * a.heads, [&](int64_t part) {
    const int64_t row = part % a.rows, head = part / a.rows;
    const int64_t lane = std::clamp<int64_t>(a.lanes[row], 0, a.pool_lanes - 1);
    const int64_t pool_at = (lane * a.heads + head) * a.slots * a.dims, row_at = (row * a.heads + head) * a.groups * a.dims;
    thread_local std::vector<float> weights;
    const int64_t visible = std::clamp<int64_t>(a.counts[row], 0, a.slots);
    const int64_t width = (visible + 15) / 16 * 16;
    weights.resize(width * a.groups);
    one({a.q + row_at, a.k + pool_at, a.v + pool_at, a.out + row_at, a.seen + row * a.slots, weights.data(), visible,
         width, a.groups, a.dims, a.scale, a.cap});
  });
}

ffi::Error attention(float scale, float cap, Queries q, ffi::BufferR4<ffi::F32> k,
                     ffi::BufferR4<ffi::F32> v, ffi::BufferR2<ffi::S32> lanes, ffi::BufferR3<ffi::S32> seen,
                     ffi::BufferR2<ffi::S32> counts, ffi::Result<Queries> out) {
  const auto qs = q.dimensions(), ks = k.dimensions(), vs = v.dimensions(), ss = seen.dimensions();
  const auto are_rows = [&](auto& of) { return of.dimensions()[0] == qs[0] && of.dimensions()[1] == qs[1]; };
  const bool fits = are_rows(lanes) && are_rows(counts) && ks[0] > 0 && are(ss, qs[0], qs[1], ks[2]) && qs[2] == ks[1] &&
                    qs[4] == ks[3] && std::equal(ks.begin(), ks.end(), vs.begin());
  if (!fits || q.element_count() != out->element_count()) {
    return ffi::Error::InvalidArgument("pasta_jax: queries, keys, values and visible slots don't fit each other");
  }
  attend({q.typed_data(), k.typed_data(), v.typed_data(), lanes.typed_data(), seen.typed_data(), counts.typed_data(),
          out->typed_data(), qs[0] * qs[1], qs[2], qs[3], ks[2], qs[4], ks[0], scale, cap});
  return ffi::Error::Success();
}

// The slots that rows see, of those in `order` [L, S] of their lanes [B, T] and in its order, and how many: see and seen
// [B, T, S].
void see_slots(const bool* see, const int32_t* order, const int32_t* lanes, int32_t* seen, int32_t* counts, int64_t rows,
               int64_t slots, int64_t order_lanes) {
  for (int64_t row = 0; row < rows; ++row, see += slots, seen += slots) {
    const int32_t* of_lane = order + std::clamp<int64_t>(lanes[row], 0, order_lanes - 1) * slots;
    const void* first = std::memchr(see, true, slots);  // most rows of many lanes see nothing
    int64_t count = 0;
    for (int64_t i = first == nullptr ? slots : 0; i < slots; ++i) {
      const int64_t s = of_lane[i];
      if (s < 0 || s >= slots) continue;
      seen[count] = s;
      count += see[s];
    }
    counts[row] = count;
  }
}

ffi::Error visible(ffi::BufferR3<ffi::PRED> see, ffi::BufferR2<ffi::S32> order, ffi::BufferR2<ffi::S32> lanes,
                   ffi::ResultBufferR3<ffi::S32> seen, ffi::ResultBufferR2<ffi::S32> counts) {
  const auto ss = see.dimensions(), os = order.dimensions(), vs = seen->dimensions(), cs = counts->dimensions();
  const auto ls = lanes.dimensions();
  if (os[0] < 1 || os[1] != ss[2] || ls[0] != ss[0] || ls[1] != ss[1] || !are(vs, ss[0], ss[1], ss[2]) || cs[0] != ss[0] ||
      cs[1] != ss[1]) {
    return ffi::Error::InvalidArgument("pasta_jax: mask, order and lanes don't fit each other");
  }
  see_slots(see.typed_data(), order.typed_data(), lanes.typed_data(), seen->typed_data(), counts->typed_data(),
            ss[0] * ss[1], ss[2], os[0]);
  return ffi::Error::Success();
}

// Keys and values [B, T, K, D] go to their slots of their lanes [B, T] of pools [L, K, S, D]; to none beyond them.
struct Writing {
  const float *k, *v;
  const int32_t *lanes, *slots;
  float *keys, *values;
  int64_t rows, heads, dims, pool_lanes, pool_slots;
};

void write(const Writing& w) {
  for (int64_t row = 0; row < w.rows; ++row) {
    const int64_t lane = w.lanes[row], slot = w.slots[row];
    if (lane < 0 || lane >= w.pool_lanes || slot < 0 || slot >= w.pool_slots) continue;
    for (int64_t head = 0; head < w.heads; ++head) {
      const int64_t from = (row * w.heads + head) * w.dims;
      const int64_t to = ((lane * w.heads + head) * w.pool_slots + slot) * w.dims;
      std::memcpy(w.keys + to, w.k + from, w.dims * sizeof(float));
      std::memcpy(w.values + to, w.v + from, w.dims * sizeof(float));
    }
  }
}

using Slots = ffi::BufferR4<ffi::F32>;
using WrittenSlots = ffi::ResultBufferR4<ffi::F32>;

ffi::Error written(Slots keys, Slots values, ffi::BufferR2<ffi::S32> lanes, ffi::BufferR2<ffi::S32> slots,
                   ffi::BufferR4<ffi::F32> k, ffi::BufferR4<ffi::F32> v, WrittenSlots new_keys, WrittenSlots new_values) {
  const auto ps = keys.dimensions(), others = values.dimensions(), ks = k.dimensions(), vs = v.dimensions();
  const auto are_rows = [&](auto& of) { return of.dimensions()[0] == ks[0] && of.dimensions()[1] == ks[1]; };
  const bool fits = std::equal(ps.begin(), ps.end(), others.begin()) && std::equal(ks.begin(), ks.end(), vs.begin()) &&
                    are_rows(slots) && are_rows(lanes) && ks[2] == ps[1] && ks[3] == ps[3];
  if (!fits || new_keys->untyped_data() != keys.untyped_data() || new_values->untyped_data() != values.untyped_data()) {
    return ffi::Error::InvalidArgument("pasta_jax: keys, values and slots don't fit the pool, which is written in place");
  }
  write({k.typed_data(), v.typed_data(), lanes.typed_data(), slots.typed_data(), new_keys->typed_data(),
         new_values->typed_data(), ks[0] * ks[1], ks[2], ks[3], ps[0], ps[2]});
  return ffi::Error::Success();
}

// The slots of each lane by their threads [B, S], and those of a thread as they are.
void by_thread(const int32_t* thread, int32_t* order, int64_t lanes, int64_t slots) {
  std::vector<int64_t> next(slots + 2);
  for (int64_t lane = 0; lane < lanes; ++lane, thread += slots, order += slots) {
    const auto key = [&](int64_t s) { return std::clamp<int64_t>(thread[s], 0, slots); };
    std::fill(next.begin(), next.end(), 0);
    for (int64_t s = 0; s < slots; ++s) ++next[key(s) + 1];
    for (int64_t t = 0; t < slots; ++t) next[t + 1] += next[t];
    for (int64_t s = 0; s < slots; ++s) order[next[key(s)]++] = s;
  }
}

ffi::Error ordered(ffi::BufferR2<ffi::S32> thread, ffi::ResultBufferR2<ffi::S32> order) {
  const auto ts = thread.dimensions(), os = order->dimensions();
  if (ts[0] != os[0] || ts[1] != os[1]) return ffi::Error::InvalidArgument("pasta_jax: threads and order don't fit");
  by_thread(thread.typed_data(), order->typed_data(), ts[0], ts[1]);
  return ffi::Error::Success();
}

// The sums of rows, each in one order. XLA's depends on how many rows there are.
void add_up(const float* x, float* y, int64_t rows, int64_t length) {
  for (int64_t r = 0; r < rows; ++r, x += length) {
    float sums[16] = {}, total = 0;
    int64_t i = 0;
    for (; i + 16 <= length; i += 16) {
      for (int64_t k = 0; k < 16; ++k) sums[k] += x[i + k];
    }
    for (; i < length; ++i) total += x[i];
    for (float sum : sums) total += sum;
    y[r] = total;
  }
}

ffi::Error sums(ffi::BufferR2<ffi::F32> x, ffi::ResultBufferR1<ffi::F32> y) {
  const auto xs = x.dimensions();
  if (xs[0] != y->dimensions()[0]) return ffi::Error::InvalidArgument("pasta_jax: rows and their sums don't fit");
  add_up(x.typed_data(), y->typed_data(), xs[0], xs[1]);
  return ffi::Error::Success();
}

// Activations of pairs [N][F][2] of a gate and what it multiplies. XLA takes such pairs apart number by number, and its
// threads wait for ours, which keep their cores for a moment after each product.
ffi::Error gated(float slope, float cubic, ffi::BufferR2<ffi::F32> pairs, ffi::ResultBufferR2<ffi::F32> out) {
  const auto ps = pairs.dimensions(), os = out->dimensions();
  if (ps[0] != os[0] || ps[1] != 2 * os[1]) return ffi::Error::InvalidArgument("pasta_jax: pairs and result don't fit");
  constexpr int64_t SHARE = 8192;
  const Activate gate = chosen.load()->gate;
  over(os[0] * os[1], SHARE, [&](int64_t begin, int64_t end) {
    gate(pairs.typed_data() + 2 * begin, out->typed_data() + begin, end - begin, slope, cubic);
  });
  return ffi::Error::Success();
}

// Cosines and sines. XLA would compute those of rotary positions again in each layer, for each head.
void cosines(const float* angles, float* cos, float* sin, int64_t count) {
  for (int64_t i = 0; i < count; ++i) cos[i] = std::cos(angles[i]), sin[i] = std::sin(angles[i]);
}

ffi::Error waves(ffi::BufferR1<ffi::F32> angles, ffi::ResultBufferR1<ffi::F32> cos, ffi::ResultBufferR1<ffi::F32> sin) {
  const int64_t count = angles.dimensions()[0];
  if (cos->dimensions()[0] != count || sin->dimensions()[0] != count) {
    return ffi::Error::InvalidArgument("pasta_jax: angles, cosines and sines don't fit");
  }
  cosines(angles.typed_data(), cos->typed_data(), sin->typed_data(), count);
  return ffi::Error::Success();
}

using Column = ffi::BufferR1<ffi::F32>;

ffi::Error draws(ffi::BufferR2<ffi::F32> logits, Column temperature, ffi::BufferR1<ffi::S32> top_k, Column top_p,
                 Column min_p, ffi::BufferR2<ffi::U32> key, ffi::BufferR1<ffi::S32> ids,
                 ffi::ResultBufferR1<ffi::S32> place) {
  const auto ls = logits.dimensions(), ks = key.dimensions();
  const int64_t rows = ls[0], count = ls[1], named = ids.dimensions()[0];
  bool fits = ks[0] == rows && ks[1] == 2 && place->dimensions()[0] == rows && top_k.dimensions()[0] == rows;
  for (const Column& column : {temperature, top_p, min_p}) fits = fits && column.dimensions()[0] == rows;
  if (!fits || count < 1 || (named != 0 && named != count)) {
    return ffi::Error::InvalidArgument("pasta_jax: logits, rules, keys and ids don't fit");
  }
  draw({logits.typed_data(), temperature.typed_data(), top_k.typed_data(), top_p.typed_data(), min_p.typed_data(),
        key.typed_data(), named == 0 ? nullptr : ids.typed_data(), place->typed_data(), rows, count});
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_product, product);
XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_coded_product, coded_product);
XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_visible, visible);
XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_written, written);
XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_ordered, ordered);
XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_sums, sums);
XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_waves, waves);
XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_draws, draws);
XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_gated, gated,
                              ffi::Ffi::Bind()
                                  .Attr<float>("slope")
                                  .Attr<float>("cubic")
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_attention, attention,
                              ffi::Ffi::Bind()
                                  .Attr<float>("scale")
                                  .Attr<float>("cap")
                                  .Arg<Queries>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR3<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Ret<Queries>());

struct Sizes {
  int64_t rows, inputs, outputs, kind, group, block, rank, width, bits;
};

extern "C" {

// Use so many threads from now on. Not while a product runs.
void pasta_threads(int threads) {
  shared_threads.store(threads);
  delete shared_pool.exchange(nullptr);
}

// Use an instruction set by its name, or the best one with an empty name; whether the machine has it.
int pasta_level(const char* name) {
  bool is_found = false;
  for (Level* level = levels(); level->name != nullptr; ++level) {
    if (!level->is_there || (*name != 0 && std::strcmp(name, level->name) != 0)) continue;
    chosen.store(level);
    is_found = true;
  }
  return is_found;
}

// Without XLA, for tests. `sizes`: rows, heads, groups, slots, dims, and the pool's lanes.
void pasta_attend(const float* q, const float* k, const float* v, const int32_t* lanes, const bool* see,
                  const int32_t* order, float* out, const int64_t* sizes, float scale, float cap) {
  std::vector<int32_t> counts(sizes[0]), seen(sizes[0] * sizes[3]);
  see_slots(see, order, lanes, seen.data(), counts.data(), sizes[0], sizes[3], sizes[5]);
  attend({q, k, v, lanes, seen.data(), counts.data(), out, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5],
          scale, cap});
}

// The name of the instruction set in use.
const char* pasta_level_name() { return chosen.load()->name; }

// `kind` as in operands.h; `width`: the bits of scales and minimums, which are bytes with factors. Null pointers where
// there is nothing.
void pasta_multiply(const float* x, const void* weights, const void* scales, const void* minimums,
                    const uint16_t* factors, const uint16_t* floors, const float* a, const float* b, float* y,
                    const int64_t* sizes) {
  const auto [rows, inputs, outputs, kind, group, block, rank, width, bits] = *reinterpret_cast<const Sizes*>(sizes);
  const auto of = [width = width](const void* stored, const uint16_t* factors) {
    return Scales{width == 32 ? static_cast<const float*>(stored) : nullptr,
                  width == 16 ? static_cast<const uint16_t*>(stored) : nullptr,
                  width == 8 ? static_cast<const int8_t*>(stored) : nullptr, factors};
  };
  const Matrix matrix{static_cast<Kind>(kind),
                      static_cast<const float*>(weights),
                      static_cast<const uint16_t*>(weights),
                      static_cast<const uint32_t*>(weights),
                      of(scales, factors),
                      of(minimums, floors),
                      b,
                      inputs,
                      group,
                      block,
                      rank};
  multiply(x, matrix, a, y, rows, outputs, bits);
}

}  // extern "C"

namespace {
const bool is_ready = [] {
  pasta_level("");
  forget_threads_in_children();
  return true;
}();
}  // namespace
