# cuLaunchKernel and its per-thread twin: the short way of gate.h (launch_begin, launch_end) in assembly, because five of
# the eleven arguments are on the stack and a compiler can only pass them on by copying them. Here the driver's function
# finds them where the caller put them: the caller's return address is kept in the thread's record while the call is under
# way, and ours stands in its place. Each `call` still meets its own `ret`, so neither the processor's prediction nor a
# shadow stack notices; unwinding finds the address by the record, which %rbx points to (the .cfi lines below).
# x86-64 System V ABI.
#
# The record's two words belong to one launch at a time: they are written after `inside` was raised and read before it is
# lowered, and a launch that begins meanwhile (a signal handler's, the driver's own) finds it raised and goes the long way.
#include "interpose/launch_layout.h"
#include "driver_offsets.gen.h"

#define PROCESS _ZN6sluice9interpose7processE
#define DRIVER _ZN6sluice9interpose6driverE
#define THIS_THREAD _ZN6sluice9interpose11this_threadE
#define GRAPH_MEMORY_SEEN _ZN6sluice9interpose17graph_memory_seenE
#define DW_CFA_expression 0x10
#define DW_OP_breg3 0x73      /* %rbx + a signed offset; offsets below 64 take one byte */
#define COLUMN_RBX 3
#define COLUMN_RETURN 16

  .hidden PROCESS, DRIVER, THIS_THREAD, GRAPH_MEMORY_SEEN

  # The driver's function, its arguments as they are on the stack. %rbx is the record; the result is in %eax.
  .macro call_through real
  popq SLUICE_THREAD_CALLER(%rbx)
  .cfi_def_cfa_offset 0
  .cfi_escape DW_CFA_expression, COLUMN_RETURN, 2, DW_OP_breg3, SLUICE_THREAD_CALLER
  call *(DRIVER + \real)(%rip)
  pushq SLUICE_THREAD_CALLER(%rbx)
  .cfi_def_cfa_offset 8
  .cfi_offset COLUMN_RETURN, -8
  .endm

  # Back to the caller: nobody is inside any more.
  .macro leave_inside
  movq %rbx, %rcx
  movq SLUICE_THREAD_CALLER_RBX(%rcx), %rbx
  .cfi_restore COLUMN_RBX
  movl $0, SLUICE_THREAD_INSIDE(%rcx)
  ret
  .endm

  .macro launch_exclusive real
  call_through \real
  testl %eax, %eax
  jnz 1f
  movq SLUICE_THREAD_EXCLUSIVE_COUNT(%rbx), %rcx
  incq (%rcx)
1:
  .cfi_remember_state
  leave_inside
  .cfi_restore_state
  .endm

  # Leaves the thread inside, its record in \record and the lease's word's address in %r10; or goes to \none. From the raise
  # on nobody may be told that the lease has drained: threads.h.
  .macro enter_inside record, none
  movq THIS_THREAD@gottpoff(%rip), %rax
  movq %fs:(%rax), \record
  testq \record, \record
  jz \none
  cmpl $0, SLUICE_THREAD_INSIDE(\record)
  jne \none
  movq SLUICE_THREAD_LEASE(\record), %r10
  testq %r10, %r10
  jz \none
  movl SLUICE_THREAD_RAISED(\record), %r11d
  movl %r11d, SLUICE_THREAD_INSIDE(\record)
  .endm

  # The stack as it was found: the stream is the third of the arguments on it.
  .macro launch_hook name, real, long, per_thread
  .text
  .globl \name
  .type \name, @function
  .p2align 6
\name:
  .cfi_startproc
  enter_inside %rax, .Lpass_\name
  movl (%r10), %r11d
  movq %rbx, SLUICE_THREAD_CALLER_RBX(%rax)
  movq %rax, %rbx
  .cfi_escape DW_CFA_expression, COLUMN_RBX, 2, DW_OP_breg3, SLUICE_THREAD_CALLER_RBX
  testb $SLUICE_LEASE_EXCLUSIVE, %r11b
  jz 2f

  launch_exclusive \real

  # A lease like others: the stream must be known and have budget left.
  .p2align 4
2:
  testb $SLUICE_LEASE_OPEN, %r11b
  jz .Llower_\name
  movq SLUICE_THREAD_RECENT(%rbx), %r10
  movq 24(%rsp), %rax
  .if \per_thread
  testq %rax, %rax
  jnz 3f
  movl $SLUICE_STREAM_PER_THREAD, %eax
3:
  .endif
  cmpq %rax, SLUICE_CACHE_STREAM(%r10)
  jne .Llower_\name
  movq SLUICE_CACHE_RECORD(%r10), %r11
  movl SLUICE_STREAM_GENERATION(%r11), %eax
  cmpl %eax, SLUICE_CACHE_GENERATION(%r10)
  jne .Llower_\name
  movl SLUICE_CACHE_BUDGET(%r10), %eax
  subl SLUICE_CACHE_KERNEL(%r10), %eax
  movl %eax, SLUICE_CACHE_BUDGET(%r10)
  js .Llower_\name
  .cfi_remember_state
  call_through \real
  testl %eax, %eax
  jnz 4f
  movq SLUICE_THREAD_RECENT(%rbx), %rcx
  movq SLUICE_CACHE_RECORD(%rcx), %rcx
  incq SLUICE_STREAM_OWNER_LAUNCHES(%rcx)
4:
  leave_inside
  .cfi_restore_state

.Llower_\name:
  movq %rbx, %rax
  movq SLUICE_THREAD_CALLER_RBX(%rax), %rbx
  .cfi_restore COLUMN_RBX
  movl $0, SLUICE_THREAD_INSIDE(%rax)
.Lpass_\name:
  cmpl $SLUICE_MODE_INERT, PROCESS(%rip)
  jne \long
  jmp *(DRIVER + \real)(%rip)
  .cfi_endproc
  .size \name, . - \name
  .endm

  .hidden sluice_launch_kernel_long, sluice_launch_kernel_long_ptsz
  launch_hook cuLaunchKernel, SLUICE_REAL_cuLaunchKernel, sluice_launch_kernel_long, 0
  launch_hook cuLaunchKernel_ptsz, SLUICE_REAL_cuLaunchKernel_ptsz, sluice_launch_kernel_long_ptsz, 1

# cuGraphLaunch and its twin as far as the lease; an exclusive one, under which nothing is learned or measured, to the end.
# Others go on in hooks_graph.cpp with the thread, which is inside, and the lease's word as further arguments.
  .macro graph_hook name, real, inside, long
  .globl \name
  .type \name, @function
  .p2align 6
\name:
  .cfi_startproc
  enter_inside %rdx, \long
  movl (%r10), %ecx
  testb $SLUICE_LEASE_EXCLUSIVE, %cl
  jz \inside
  cmpl $0, GRAPH_MEMORY_SEEN(%rip)
  jne \inside
  movq %rbx, SLUICE_THREAD_CALLER_RBX(%rdx)
  movq %rdx, %rbx
  .cfi_escape DW_CFA_expression, COLUMN_RBX, 2, DW_OP_breg3, SLUICE_THREAD_CALLER_RBX
  launch_exclusive \real
  .cfi_endproc
  .size \name, . - \name
  .endm

  .hidden sluice_graph_inside, sluice_graph_inside_ptsz, sluice_graph_long, sluice_graph_long_ptsz
  graph_hook cuGraphLaunch, SLUICE_REAL_cuGraphLaunch, sluice_graph_inside, sluice_graph_long
  graph_hook cuGraphLaunch_ptsz, SLUICE_REAL_cuGraphLaunch_ptsz, sluice_graph_inside_ptsz, sluice_graph_long_ptsz

# Linked first, this begins the writable segment: on a page of its own, so that the loader has one page to copy and write.
  .section .data.rel.ro.local, "aw", @progbits
  .p2align 12

  .section .note.GNU-stack, "", @progbits
