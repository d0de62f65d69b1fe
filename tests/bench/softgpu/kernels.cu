// The shapes that training and inference are made of, as benchmarks of the interpreter: one kernel
// per pattern of memory access and arithmetic, written the plain way.

extern "C" __global__ void saxpy(int n, float a, const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

// One thread per element, a whole row against a whole column.
extern "C" __global__ void gemm_naive(const float* a, const float* b, float* c, int n) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y,
            column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n || column >= n) return;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
  c[row * n + column] = sum;
}

// Tiles of 16x16 in shared memory.
extern "C" __global__ void gemm_tiled(const float* a, const float* b, float* c, int n) {
  __shared__ float tile_a[16][16], tile_b[16][16];
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
  for (int t = 0; t < n; t += 16) {
    tile_a[y][x] = a[row * n + t + x];
    tile_b[y][x] = b[(t + y) * n + column];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; ++k) sum += tile_a[y][k] * tile_b[k][x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

// 64x64 per block, 4x4 per thread, vectors of four through shared memory.
extern "C" __global__ void gemm_registers(const float* a, const float* b, float* c, int n) {
  __shared__ float4 tile_a[16][16], tile_b[16][16];  // [k][row or column / 4]
  const int t = threadIdx.x, x = t % 16, y = t / 16;
  float sum[4][4] = {};
  for (int step = 0; step < n; step += 16) {
    float* flat_a = reinterpret_cast<float*>(tile_a);
    const float4 quad =
        *reinterpret_cast<const float4*>(&a[(blockIdx.y * 64 + t / 4) * n + step + t % 4 * 4]);
    flat_a[(t % 4 * 4 + 0) * 64 + t / 4] = quad.x;
    flat_a[(t % 4 * 4 + 1) * 64 + t / 4] = quad.y;
    flat_a[(t % 4 * 4 + 2) * 64 + t / 4] = quad.z;
    flat_a[(t % 4 * 4 + 3) * 64 + t / 4] = quad.w;
    tile_b[y][x] = *reinterpret_cast<const float4*>(&b[(step + y) * n + blockIdx.x * 64 + x * 4]);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const float4 p = tile_a[k][y], q = tile_b[k][x];
      const float rows[4] = {p.x, p.y, p.z, p.w}, columns[4] = {q.x, q.y, q.z, q.w};
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) sum[i][j] += rows[i] * columns[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    float4* to =
        reinterpret_cast<float4*>(&c[(blockIdx.y * 64 + y * 4 + i) * n + blockIdx.x * 64 + x * 4]);
    *to = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
  }
}

__device__ float block_sum(float v) {
  __shared__ float part[32];
  for (int k = 16; k > 0; k /= 2) v += __shfl_xor_sync(~0u, v, k);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < blockDim.x / 32; ++k) sum += part[k];
  __syncthreads();
  return sum;
}

extern "C" __global__ void softmax(const float* in, float* out, int columns) {
  const float* row = in + blockIdx.x * columns;
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += expf(row[c]);
  sum = block_sum(sum);
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    out[blockIdx.x * columns + c] = expf(row[c]) / sum;
}

extern "C" __global__ void layernorm(const float* in, float* out, int columns) {
  const float* row = in + blockIdx.x * columns;
  float sum = 0, squares = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += row[c];
  const float mean = block_sum(sum) / columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    squares += (row[c] - mean) * (row[c] - mean);
  const float scale = rsqrtf(block_sum(squares) / columns + 1e-5f);
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    out[blockIdx.x * columns + c] = (row[c] - mean) * scale;
}

extern "C" __global__ void adam(float* w, const float* g, float* m, float* v, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  m[i] = 0.9f * m[i] + 0.1f * g[i];
  v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
  w[i] -= 1e-3f * (m[i] / 0.1f) / (sqrtf(v[i] / 0.001f) + 1e-8f);
}

extern "C" __global__ void gelu(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 0.5f * in[i] * (1.f + erff(in[i] * 0.70710678f));
}

extern "C" __global__ void gelu_tanh(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = in[i];
  out[i] = 0.5f * x * (1.f + tanhf(0.7978845608f * fmaf(0.044715f * x * x, x, x)));
}

extern "C" __global__ void relu_gradient(const float* out, const float* grad, float* into, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) into[i] = out[i] > 0.5f ? grad[i] : 0.f;
}

// One thread per column: a sum down the rows.
extern "C" __global__ void bias_gradient(const float* grad, float* bias, int rows, int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (int row = 0; row < rows; ++row) sum += grad[row * columns + column];
  bias[column] = sum;
}

// Every block adds to the same cells: atomics that meet.
extern "C" __global__ void column_sums(const float* in, float* sums, int columns) {
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    atomicAdd(&sums[c], in[blockIdx.x * columns + c] * 1e-3f);
}

__device__ float block_max(float v) {
  __shared__ float part[32];
  for (int k = 16; k > 0; k /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, k));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  float most = part[0];
  for (int k = 1; k < blockDim.x / 32; ++k) most = fmaxf(most, part[k]);
  __syncthreads();
  return most;
}

// Row by row: loss and gradient of softmax, the label being row modulo columns.
extern "C" __global__ void cross_entropy(const float* in, float* grad, float* loss, int columns) {
  const float* row = in + blockIdx.x * columns;
  const int label = blockIdx.x % columns;
  float most = -1e30f, sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) most = fmaxf(most, row[c]);
  most = block_max(most);
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += __expf(row[c] - most);
  sum = block_sum(sum);
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    grad[blockIdx.x * columns + c] = __expf(row[c] - most) / sum - (c == label ? 1.f : 0.f);
  if (threadIdx.x == 0) loss[blockIdx.x] = __logf(sum) + most - row[label];
}

// 3x3 patches of a batch of square images: integer division and remainders by the dozen.
extern "C" __global__ void patches(const float* in, float* out, int images, int channels,
                                   int size) {
  const int total = images * channels * 9 * size * size;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
    int rest = i;
    const int x = rest % size, y = (rest /= size) % size, image = (rest /= size) % images;
    const int dx = (rest /= images) % 3, dy = (rest /= 3) % 3, channel = rest / 3;
    const int from_x = x + dx - 1, from_y = y + dy - 1;
    const bool inside = from_x >= 0 && from_x < size && from_y >= 0 && from_y < size;
    out[i] = inside ? in[((image * channels + channel) * size + from_y) * size + from_x] : 0.f;
  }
}

extern "C" __global__ void max_pool(const float* in, float* out, int planes, int size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, half = size / 2;
  if (i >= planes * half * half) return;
  const int x = i % half, y = i / half % half, plane = i / half / half;
  float most = -1e30f;
  for (int k = 0; k < 4; ++k) {
    const float v = in[(plane * size + y * 2 + k / 2) * size + x * 2 + k % 2];
    if (v > most) most = v;
  }
  out[i] = most;
}

extern "C" __global__ void empty() {}

// Nothing but lanes that read each other: sums, prefix sums and broadcasts of a warp.
extern "C" __global__ void shuffles(const float* in, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = in[i];
  for (int round = 0; round < 8; ++round) {
    for (int k = 16; k > 0; k /= 2) v += __shfl_xor_sync(~0u, v, k) * 0.01f;
    for (int k = 1; k < 32; k *= 2) v += __shfl_up_sync(~0u, v, k) * 0.01f;
    v += __shfl_sync(~0u, v, round);
  }
  out[i] = v;
}
