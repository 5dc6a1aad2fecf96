// Enough of CUDA C++ to run models/kernels/preprocess.cu on a CPU, one thread after the other. A block runs twice: the first time
// each thread stops at the barrier, having written its part of the shared memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
using std::max;
using std::min;

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(threads)
#define __shared__ static
#define __syncthreads() if (before_barrier) return

struct Index { unsigned x, y; };
static Index blockIdx, threadIdx;
static bool before_barrier;

template <typename T> T __ldg(const T* address) { return *address; }
static double __dadd_rn(double a, double b) { return a + b; }
static double __dmul_rn(double a, double b) { return a * b; }
static double __ddiv_rn(double a, double b) { return a / b; }
