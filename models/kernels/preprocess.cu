// From the planes of decoded pictures to a model's tensor: one launch for a whole batch, one thread for each canvas pixel.
//
// models/preprocess.py says what is computed, tests/models/reference.py says it in float64. models/preprocess_cuda.py fills the
// structures below, compiles this file for one model's canvas and normalisation, and defines
//   FILTER (0 box, 1 bilinear, 2 bicubic), OUTPUT (0 float, 1 half, 2 unsigned char, 3 signed char), CHANNELS_LAST, BGR,
//   CANVAS_WIDTH, CANVAS_HEIGHT, MEAN, SCALE, PAD (in the tensor's order of channels, the pad normalised), and the constants of
//   tone mapping (PQ_*, HLG_*, SOURCE_PEAK, SDR_WHITE, EETF_*).
//
// A block is a tile of the coded picture, 32 pixels across and 8 down: neighbouring threads read neighbouring samples also where
// the picture is shown turned by a quarter.

#if OUTPUT == 1
#include <cuda_fp16.h>
typedef __half Number;
#elif OUTPUT == 2
typedef unsigned char Number;
#elif OUTPUT == 3
typedef signed char Number;
#else
typedef float Number;
#endif

#define TILE_ACROSS 32
#define TILE_DOWN 8
#define THREADS (TILE_ACROSS * TILE_DOWN)

// One side of the coded picture.
struct Side {
  double step;          // luma samples a pixel
  double siting;        // of the first chroma sample, in luma samples
  int luma, chroma;     // samples
  int factor;           // chroma subsampling
  int size;             // pixels that the whole side is scaled to
  int reverse;
  int skipped;          // pixels of it that lie before the canvas
  int begin, end;       // pixels of the canvas' side that it covers
};

// All of a picture but where it lies in memory.
struct Shape {
  Side across, down;
  float matrix[9], offset[3];     // stored values to RGB of 0 to 255
  float to_bt709[9], luminance[3];
  int planes;                     // 1 or 3
  int bytes;                      // of a sample, 1 or 2
  int swaps_sides;
  int transfer;                   // 16 PQ, 18 HLG, else 0
};

// Where its planes lie: addresses, and distances in bytes.
struct Planes {
  long long luma, cb, cr;
  long long luma_row, cb_row, cr_row;
  long long luma_sample, chroma_sample;
};

// The samples that go into one pixel along one side, and how much of each.
struct Taps {
  int low, count;
  float offset, scale, gain;
};

__device__ __forceinline__ float kernel_at(float x) {
#if FILTER == 0
  return 1.0f;
#elif FILTER == 1
  return fmaxf(1.0f - fabsf(x), 0.0f);
#else
  x = fabsf(x);  // Keys 1981 with a = -0.5, as Pillow
  float near = (1.5f * x - 2.5f) * x * x + 1.0f;
  float far = (((x - 5.0f) * x + 8.0f) * x - 4.0f) * -0.5f;
  return x < 1.0f ? near : (x < 2.0f ? far : 0.0f);
#endif
}

__device__ __forceinline__ float weight_of(const Taps& taps, int tap) {
  return kernel_at((taps.offset + (float)tap) * taps.scale);
}

// models/resample.py's `operator` for one pixel. Which samples count hangs on the last bit: the same operations in the same
// order, in double, with nothing contracted.
__device__ Taps taps_at(const Side& side, int canvas_pixel, bool chroma) {
  Taps taps = {0, 0, 0.0f, 0.0f, 0.0f};
  if (canvas_pixel < side.begin || canvas_pixel >= side.end) return taps;
  int pixel = canvas_pixel - side.begin + side.skipped;
  if (side.reverse) pixel = side.size - 1 - pixel;
  double factor = chroma ? (double)side.factor : 1.0;
  double siting = chroma ? side.siting : 0.0;
  int samples = chroma ? side.chroma : side.luma;
  double centre = __dmul_rn(__dadd_rn((double)pixel, 0.5), side.step);
  centre = __dadd_rn(__ddiv_rn(__dadd_rn(__dadd_rn(centre, -0.5), -siting), factor), 0.5);
  double reduction = fmax(__ddiv_rn(side.step, factor), 1.0);
  double inverse = __ddiv_rn(1.0, reduction);
  double support = __dmul_rn(FILTER == 0 ? 0.5 : FILTER == 1 ? 1.0 : 2.0, reduction);
  int low = max((int)__dadd_rn(__dadd_rn(centre, -support), 0.5), 0);
  int high = min((int)__dadd_rn(__dadd_rn(centre, support), 0.5), samples);
#if FILTER == 0
  for (; low < high && !(__dmul_rn(__dadd_rn(__dadd_rn((double)low, -centre), 0.5), inverse) > -0.5); ++low) {}
  for (; low < high && !(__dmul_rn(__dadd_rn(__dadd_rn((double)(high - 1), -centre), 0.5), inverse) <= 0.5); --high) {}
#endif
  if (high <= low) {  // the pixel lies beyond the outermost sample by more than the kernel reaches
    taps.low = min(max((int)floor(centre), 0), samples - 1);
    taps.count = 1;
    taps.gain = 1.0f;
    return taps;
  }
  taps.low = low;
  taps.count = high - low;
  taps.offset = (float)((double)low - centre + 0.5);
  taps.scale = (float)inverse;
  float sum = 0.0f;
  for (int tap = 0; tap < taps.count; ++tap) sum += weight_of(taps, tap);
  taps.gain = 1.0f / sum;
  return taps;
}

template <typename Sample>
__device__ __forceinline__ float resampled(const Planes& planes, const Taps& across, const Taps& down) {
  const char* line = (const char*)planes.luma + down.low * planes.luma_row + across.low * planes.luma_sample;
  float sum = 0.0f;
  for (int j = 0; j < down.count; ++j, line += planes.luma_row) {
    const char* place = line;
    float part = 0.0f;
    for (int i = 0; i < across.count; ++i, place += planes.luma_sample)
      part += weight_of(across, i) * (float)__ldg((const Sample*)place);
    sum += weight_of(down, j) * part;
  }
  return sum * across.gain * down.gain;
}

// Two planes of one grid, so that the weights are worked out once.
template <typename Sample>
__device__ __forceinline__ void resampled_pair(const Planes& planes, const Taps& across, const Taps& down, float* cb, float* cr) {
  long long first = across.low * planes.chroma_sample;
  const char* cb_line = (const char*)planes.cb + down.low * planes.cb_row + first;
  const char* cr_line = (const char*)planes.cr + down.low * planes.cr_row + first;
  float cb_sum = 0.0f, cr_sum = 0.0f;
  for (int j = 0; j < down.count; ++j, cb_line += planes.cb_row, cr_line += planes.cr_row) {
    long long place = 0;
    float cb_part = 0.0f, cr_part = 0.0f;
    for (int i = 0; i < across.count; ++i, place += planes.chroma_sample) {
      float weight = weight_of(across, i);
      cb_part += weight * (float)__ldg((const Sample*)(cb_line + place));
      cr_part += weight * (float)__ldg((const Sample*)(cr_line + place));
    }
    float weight = weight_of(down, j);
    cb_sum += weight * cb_part;
    cr_sum += weight * cr_part;
  }
  *cb = cb_sum * across.gain * down.gain;
  *cr = cr_sum * across.gain * down.gain;
}

// models/tonemap.py. Light is in units of 10,000 nits.
__device__ __forceinline__ float pq_to_light(float signal) {
  float root = powf(signal, 1.0f / PQ_M2);
  return powf(fmaxf(root - PQ_C1, 0.0f) / (PQ_C2 - PQ_C3 * root), 1.0f / PQ_M1);
}

__device__ __forceinline__ float light_to_pq(float light) {
  float power = powf(light, PQ_M1);
  return powf((PQ_C1 + PQ_C2 * power) / (1.0f + PQ_C3 * power), PQ_M2);
}

__device__ __forceinline__ float hlg_to_scene(float signal) {
  return signal <= 0.5f ? signal * signal / 3.0f : (expf((signal - HLG_C) / HLG_A) + HLG_B) / 12.0f;
}

__device__ __forceinline__ float eetf(float light) {
  float e1 = fminf(light_to_pq(light) / EETF_PEAK, 1.0f);
  if (e1 >= EETF_KNEE) {
    float t = (e1 - EETF_KNEE) / (1.0f - EETF_KNEE), t2 = t * t, t3 = t2 * t;
    e1 = (2 * t3 - 3 * t2 + 1) * EETF_KNEE + (t3 - 2 * t2 + t) * (1.0f - EETF_KNEE) + (3 * t2 - 2 * t3) * EETF_LARGEST;
  }
  return pq_to_light(e1 * EETF_PEAK);
}

__device__ __forceinline__ float srgb(float linear) {
  return linear <= 0.0031308f ? 12.92f * linear : 1.055f * powf(linear, 1.0f / 2.4f) - 0.055f;
}

__device__ __noinline__ void tone_map(const Shape& shape, float* rgb) {
  float light[3];
  for (int c = 0; c < 3; ++c) {
    float signal = rgb[c] / 255.0f;
    light[c] = shape.transfer == 16 ? pq_to_light(signal) : hlg_to_scene(signal);
  }
  if (shape.transfer == 18) {
    float y = shape.luminance[0] * light[0] + shape.luminance[1] * light[1] + shape.luminance[2] * light[2];
    float gain = powf(y, HLG_GAMMA - 1.0f) * (SOURCE_PEAK / 10000.0f);
    for (int c = 0; c < 3; ++c) light[c] *= gain;
  }
  const float* m = shape.to_bt709;
  float converted[3];
  for (int c = 0; c < 3; ++c)
    converted[c] = fmaxf(m[3 * c] * light[0] + m[3 * c + 1] * light[1] + m[3 * c + 2] * light[2], 0.0f);
  float brightest = fmaxf(fmaxf(converted[0], converted[1]), converted[2]);
  float gain = brightest > 0.0f ? eetf(brightest) / brightest * (10000.0f / SDR_WHITE) : 0.0f;
  for (int c = 0; c < 3; ++c) rgb[c] = 255.0f * srgb(fminf(converted[c] * gain, 1.0f));
}

__device__ __forceinline__ Number as_number(float value) {
#if OUTPUT == 1
  return __float2half_rn(value);
#elif OUTPUT == 2
  return (Number)fminf(fmaxf(rintf(value), 0.0f), 255.0f);
#elif OUTPUT == 3
  return (Number)fminf(fmaxf(rintf(value), -128.0f), 127.0f);
#else
  return value;
#endif
}

// Grid: (tiles of a canvas, pictures).
extern "C" __global__ void __launch_bounds__(THREADS)
preprocess(const Shape* shapes, const Planes* all_planes, Number* tensor) {
  const Shape& shape = shapes[blockIdx.y];
  int across_size = shape.swaps_sides ? CANVAS_HEIGHT : CANVAS_WIDTH;
  int down_size = shape.swaps_sides ? CANVAS_WIDTH : CANVAS_HEIGHT;
  int tiles_across = (across_size + TILE_ACROSS - 1) / TILE_ACROSS;
  int first_across = (int)(blockIdx.x % tiles_across) * TILE_ACROSS;
  int first_down = (int)(blockIdx.x / tiles_across) * TILE_DOWN;
  if (first_down >= down_size) return;  // the grid fits the orientation with more tiles

  __shared__ Taps luma_across[TILE_ACROSS], chroma_across[TILE_ACROSS], luma_down[TILE_DOWN], chroma_down[TILE_DOWN];
  int thread = threadIdx.x;
  // A warp each, so that none of them waits for another's branch.
  int lane = thread % TILE_ACROSS, warp = thread / TILE_ACROSS;
  if (warp == 0) luma_across[lane] = taps_at(shape.across, first_across + lane, false);
  if (warp == 1) chroma_across[lane] = taps_at(shape.across, first_across + lane, true);
  if (warp == 2 && lane < TILE_DOWN) luma_down[lane] = taps_at(shape.down, first_down + lane, false);
  if (warp == 3 && lane < TILE_DOWN) chroma_down[lane] = taps_at(shape.down, first_down + lane, true);
  __syncthreads();

  int column = lane, line = warp;
  int across = first_across + column, down = first_down + line;
  if (across >= across_size || down >= down_size) return;
  const float mean[3] = MEAN, scale[3] = SCALE, pad[3] = PAD;
  float channels[3];
  if (luma_across[column].count == 0 || luma_down[line].count == 0) {
    for (int c = 0; c < 3; ++c) channels[c] = pad[c];
  } else {
    const Planes& planes = all_planes[blockIdx.y];
    float y, cb = 0.0f, cr = 0.0f;
    if (shape.bytes == 1) {
      y = resampled<unsigned char>(planes, luma_across[column], luma_down[line]);
      if (shape.planes == 3) resampled_pair<unsigned char>(planes, chroma_across[column], chroma_down[line], &cb, &cr);
    } else {
      y = resampled<unsigned short>(planes, luma_across[column], luma_down[line]);
      if (shape.planes == 3) resampled_pair<unsigned short>(planes, chroma_across[column], chroma_down[line], &cb, &cr);
    }
    float rgb[3];
    for (int c = 0; c < 3; ++c) {
      const float* row = shape.matrix + 3 * c;
      rgb[c] = fminf(fmaxf(row[0] * y + row[1] * cb + row[2] * cr + shape.offset[c], 0.0f), 255.0f);
    }
    if (shape.transfer != 0) tone_map(shape, rgb);
    for (int c = 0; c < 3; ++c) channels[c] = (rgb[BGR ? 2 - c : c] - mean[c]) * scale[c];
  }
  int x = shape.swaps_sides ? down : across, row = shape.swaps_sides ? across : down;
  const long long area = (long long)CANVAS_WIDTH * CANVAS_HEIGHT;
  Number* canvas = tensor + blockIdx.y * 3 * area;
  long long pixel = (long long)row * CANVAS_WIDTH + x;
  for (int c = 0; c < 3; ++c) canvas[CHANNELS_LAST ? 3 * pixel + c : c * area + pixel] = as_number(channels[c]);
}
