// vfork: the child runs on the caller's stack frame and returns through it, so no C frame of ours may stand between.
// The fiber goes native-only and takes its own signal mask before; the parent undoes both when it resumes. The return
// address is kept in thread-local memory, not on the stack that the child overwrites.
	.text
	.globl	vfork
	.type	vfork, @function
vfork:
	.cfi_startproc
	popq	%rdi			// return address: vfork_before keeps it
	.cfi_adjust_cfa_offset -8
	.cfi_register %rip, %rdi
	call	vthr_vfork_before@PLT
	movl	$58, %eax		// SYS_vfork
	syscall
	movq	%rax, %rdi
	call	vthr_vfork_after@PLT	// result in rax, return address in rdx
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	ret
	.cfi_endproc
	.size	vfork, .-vfork
	.section .note.GNU-stack,"",@progbits
