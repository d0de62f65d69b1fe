// A kernel that is compiled to machine code of one device and to nothing else.
extern "C" __global__ void only_there() {}
