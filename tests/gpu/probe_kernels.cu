// What probe_capture loads: something to find in a module, plain and managed.
__device__ int probe_cell;
__managed__ int probe_shared_cell;

extern "C" __global__ void probe_kernel(int* out) { *out = probe_cell + probe_shared_cell; }
