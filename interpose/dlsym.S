# The exported dlsym and dlvsym. glibc's functions look at their caller's return address (RTLD_NEXT, RTLD_DEFAULT in
# namespaces), so ours may not appear in the call chain: ask a C function whether the name is one of ours, and otherwise
# jump to the real function with every argument as the caller left it. Assembly, because no compiler flag promises a
# tail call. x86-64 System V ABI.
#
# All of a process's look-ups come through here, and nearly none is of a driver: a name whose first letter is neither c
# (cu...) nor n (nvml...) is not worth the question (name_may_be_ours() in table.h knows the rest of the prefixes). The
# question is asked for any name as long as the real function is not known, because asking finds it.
#if !defined(__x86_64__)
#error "the look-up trampolines are written for x86-64; port dlsym.S to this architecture"
#endif

  .macro trampoline name, version_old, version_new, decide, real
  .text
  .globl \name\()_entry
  .hidden \name\()_entry
  .type \name\()_entry, @function
  .p2align 4
\name\()_entry:
  .cfi_startproc
  endbr64
  testq %rsi, %rsi
  jz 1f
  movzbl (%rsi), %eax
  cmpb $'c', %al
  je 3f
  cmpb $'n', %al
  je 3f
1:
  movq \real(%rip), %rax
  testq %rax, %rax
  jz 3f
  jmpq *%rax
3:
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  call \decide
  popq %rdx
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testq %rax, %rax
  jz 4f
  # 1 means: the answer is a null pointer, and dlerror is set.
  cmpq $1, %rax
  jne 2f
  xorl %eax, %eax
2:
  ret
4:
  jmpq *\real(%rip)
  .cfi_endproc
  .size \name\()_entry, . - \name\()_entry

  .globl \name\()_new
  .type \name\()_new, @function
  .set \name\()_new, \name\()_entry
  .globl \name\()_old
  .type \name\()_old, @function
  .set \name\()_old, \name\()_entry
  .symver \name\()_new, \name\()@@\version_new
  .symver \name\()_old, \name\()@\version_old
  .endm

  trampoline dlsym, GLIBC_2.2.5, GLIBC_2.34, sluice_dlsym_decide, sluice_real_dlsym
  trampoline dlvsym, GLIBC_2.2.5, GLIBC_2.34, sluice_dlvsym_decide, sluice_real_dlvsym

# What the C runtime's start files, which are left out, would define: the name under which libc keeps our exit and fork
# handlers until this library is unloaded. It never is (-z nodelete), so it is the program's own.
  .section .rodata
  .globl __dso_handle
  .hidden __dso_handle
  .type __dso_handle, @object
  .p2align 3
__dso_handle:
  .quad 0
  .size __dso_handle, 8

  .section .note.GNU-stack, "", @progbits
  .section .note.gnu.property, "a"
  .p2align 3
  .long 4
  .long 16
  .long 5
  .asciz "GNU"
  .long 0xc0000002
  .long 4
  .long 3
  .long 0
