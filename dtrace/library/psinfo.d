/*
 * psinfo_t and lwpsinfo_t of Solaris' proc(4), which describe a process and a thread, with the
 * members in the documentation of DTrace on FreeBSD.
 */
typedef struct psinfo {
	int pr_nlwp;		/* number of threads */
	pid_t pr_pid;
	pid_t pr_ppid;
	pid_t pr_pgid;		/* process group ID */
	pid_t pr_sid;		/* session ID */
	uid_t pr_uid;
	uid_t pr_euid;
	gid_t pr_gid;
	gid_t pr_egid;
	uintptr_t pr_addr;	/* address of the struct proc */
	string pr_psargs;	/* arguments, separated by spaces */
	u_int pr_arglen;
	u_int pr_jailid;
} psinfo_t;

translator psinfo_t < struct proc *P > {
	pr_nlwp = P->p_numthreads;
	pr_pid = P->p_pid;
	pr_ppid = P->p_pptr != NULL ? P->p_pptr->p_pid : 0;
	pr_pgid = P->p_pgrp != NULL ? P->p_pgrp->pg_id : 0;
	pr_sid = P->p_pgrp == NULL ? 0 :
	    P->p_pgrp->pg_session == NULL ? 0 : P->p_pgrp->pg_session->s_sid;
	pr_uid = P->p_ucred->cr_ruid;
	pr_euid = P->p_ucred->cr_uid;
	pr_gid = P->p_ucred->cr_rgid;
	pr_egid = P->p_ucred->cr_gid;
	pr_addr = (uintptr_t)P;
	pr_psargs = P->p_args == NULL ? "" :
	    memstr(P->p_args->ar_args, ' ', P->p_args->ar_length);
	pr_arglen = P->p_args == NULL ? 0 : P->p_args->ar_length;
	pr_jailid = P->p_ucred->cr_prison->pr_id;
};

typedef struct lwpsinfo {
	id_t pr_lwpid;
	int pr_flag;		/* td_flags */
	int pr_pri;
	char pr_state;		/* td_state */
	char pr_sname;		/* letter for pr_state: I inhibited or inactive, R runnable, O on a CPU */
	short pr_syscall;	/* number of the current system call */
	uintptr_t pr_addr;	/* address of the struct thread */
	uintptr_t pr_wchan;	/* wait channel */
} lwpsinfo_t;

translator lwpsinfo_t < struct thread *T > {
	pr_lwpid = T->td_tid;
	pr_flag = T->td_flags;
	pr_pri = T->td_priority;
	pr_state = T->td_state;
	pr_sname = T->td_state == 4 ? 'O' : T->td_state < 2 ? 'I' : 'R';
	pr_syscall = T->td_sa.code;
	pr_addr = (uintptr_t)T;
	pr_wchan = (uintptr_t)T->td_wchan;
};

inline psinfo_t *curpsinfo = xlate <psinfo_t *> (curthread->td_proc);
inline lwpsinfo_t *curlwpsinfo = xlate <lwpsinfo_t *> (curthread);
