// The things of the signal family that C cannot say.
	.text

// sigsetjmp stores the registers of its caller, so libc's is jumped to, not called. rdi: the buffer, esi: save the mask.
	.globl	setjmp
	.type	setjmp, @function
setjmp:					// BSD's, which saves the mask; the header's setjmp is _setjmp
	movl	$1, %esi
	.size	setjmp, .-setjmp
	.globl	__sigsetjmp
	.type	__sigsetjmp, @function
__sigsetjmp:
	.cfi_startproc
	movq	vthr_real_sigsetjmp(%rip), %rax
	testl	%esi, %esi
	jne	1f
	testq	%rax, %rax
	je	1f
	jmp	*%rax
1:	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	vthr_before_sigsetjmp@PLT
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	jmp	*%rax
	.cfi_endproc
	.size	__sigsetjmp, .-__sigsetjmp

// getcontext and swapcontext store the registers of their caller too, and setcontext takes them from no call. rdi, rsi: contexts.
	.macro CONTEXT_CALL name, before
	.globl	\name
	.type	\name, @function
\name:
	.cfi_startproc
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	\before@PLT
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	jmp	*%rax
	.cfi_endproc
	.size	\name, .-\name
	.endm
	CONTEXT_CALL getcontext, vthr_before_getcontext
	CONTEXT_CALL setcontext, vthr_before_setcontext
	CONTEXT_CALL swapcontext, vthr_before_swapcontext

// void vthr_call_on_stack(void (*function)(void*), void* arg, void* top): top is a multiple of 16. Unwinders pass through.
	.globl	vthr_call_on_stack
	.hidden	vthr_call_on_stack
	.type	vthr_call_on_stack, @function
vthr_call_on_stack:
	.cfi_startproc
	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp
	movq	%rdx, %rsp
	movq	%rdi, %rax
	movq	%rsi, %rdi
	call	*%rax
	leave
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
	.size	vthr_call_on_stack, .-vthr_call_on_stack
	.section .note.GNU-stack,"",@progbits
