/*
 * I/O requests, devices and open files, as dtrace_io(4), g_bio(9) and devstat(9) describe them.
 */
typedef struct devinfo {
	int dev_major;
	int dev_minor;
	int dev_instance;
	int dev_type;
	string dev_name;
	string dev_statname;
	string dev_pathname;
} devinfo_t;

translator devinfo_t < struct devstat *D > {
	dev_major = D == NULL ? 0 : D->device_number;
	dev_minor = D == NULL ? 0 : D->unit_number;
	dev_instance = 0;
	dev_type = D == NULL ? 0 : D->device_type;
	dev_name = D == NULL ? "" : stringof(D->device_name);
	dev_statname = D == NULL ? "" : stringof(D->device_name);
	dev_pathname = D == NULL ? "" : stringof(D->device_name);
};

typedef struct bufinfo {
	int b_cmd;
	int b_flags;
	long b_bcount;
	caddr_t b_addr;
	uint64_t b_blkno;
	uint64_t b_lblkno;
	size_t b_resid;
	size_t b_bufsize;
	int b_error;
} bufinfo_t;

/* FreeBSD's io.d also sets the block numbers and the buffer size to 0, so scripts expect this. */
translator bufinfo_t < struct bio *B > {
	b_cmd = B == NULL ? 0 : B->bio_cmd;
	b_flags = B == NULL ? 0 : B->bio_flags;
	b_bcount = B == NULL ? 0 : B->bio_bcount;
	b_addr = B->bio_data;
	b_blkno = 0;
	b_lblkno = 0;
	b_resid = B == NULL ? 0 : B->bio_resid;
	b_bufsize = 0;
	b_error = B == NULL ? 0 : B->bio_error;
};

typedef struct fileinfo {
	string fi_name;
	off_t fi_offset;
	string fi_fs;
	int fi_oflags;
} fileinfo_t;

/* An open file. Its name is the last path component, from the kernel's name cache. */
translator fileinfo_t < struct file *F > {
	fi_name = F == NULL ? "<none>" : F->f_vnode == NULL ? "<none>" : F->f_vnode->v_cache_dst.tqh_first == NULL ? "<unknown>" :
	    stringof(F->f_vnode->v_cache_dst.tqh_first->nc_name);
	fi_offset = F == NULL ? 0 : F->f_offset;
	fi_fs = F == NULL ? "<none>" : F->f_vnode == NULL ? "<none>" : stringof(F->f_vnode->v_mount->mnt_stat.f_fstypename);
	fi_oflags = F == NULL ? 0 : F->f_flag;
};

/* Flags of open(2) and fi_oflags, from fcntl.h */
inline int O_ACCMODE = 3;
inline int O_RDONLY = 0;
inline int O_WRONLY = 1;
inline int O_RDWR = 2;
inline int O_NONBLOCK = 4;
inline int O_NDELAY = 4;
inline int O_APPEND = 8;
inline int O_SYNC = 0x80;
inline int O_CREAT = 0x200;
inline int O_TRUNC = 0x400;
inline int O_EXCL = 0x800;
inline int O_NOCTTY = 0x8000;

/* Values of b_cmd, from sys/bio.h */
inline int BIO_READ = 1;
inline int BIO_WRITE = 2;
inline int BIO_DELETE = 3;
inline int BIO_GETATTR = 4;
inline int BIO_FLUSH = 5;
inline int BIO_CMD0 = 6;
inline int BIO_CMD1 = 7;
inline int BIO_CMD2 = 8;
inline int BIO_ZONE = 9;
inline int BIO_SPEEDUP = 10;

inline string bio_cmd_string[int cmd] =
    cmd == BIO_READ ? "read" :
    cmd == BIO_WRITE ? "write" :
    cmd == BIO_DELETE ? "delete" :
    cmd == BIO_GETATTR ? "getattr" :
    cmd == BIO_FLUSH ? "flush" :
    cmd == BIO_CMD0 ? "cmd0" :
    cmd == BIO_CMD1 ? "cmd1" :
    cmd == BIO_CMD2 ? "cmd2" :
    cmd == BIO_ZONE ? "zone" :
    cmd == BIO_SPEEDUP ? "speedup" :
    "unknown";
