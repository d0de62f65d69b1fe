// Where launch.S finds what it reads: offsets into ThreadRecord, StreamCache and StreamRecord, in
// bytes, and flags. Read by the assembler and, to be checked against the types, by C++
// (hooks_launch.cpp).
#pragma once

#define SLUICE_THREAD_INSIDE 0
#define SLUICE_THREAD_LEASE 8
#define SLUICE_THREAD_RAISED 16
#define SLUICE_THREAD_RECENT 24
#define SLUICE_THREAD_EXCLUSIVE_COUNT 32
#define SLUICE_THREAD_CALLER 40
#define SLUICE_THREAD_CALLER_RBX 48

#define SLUICE_CACHE_STREAM 0
#define SLUICE_CACHE_RECORD 8
#define SLUICE_CACHE_GENERATION 16
#define SLUICE_CACHE_BUDGET 20
#define SLUICE_CACHE_KERNEL 28

#define SLUICE_STREAM_OWNER_LAUNCHES 24
#define SLUICE_STREAM_GENERATION 72

#define SLUICE_LEASE_OPEN 1
#define SLUICE_LEASE_EXCLUSIVE 2
#define SLUICE_STREAM_PER_THREAD 2
#define SLUICE_MODE_INERT 1
