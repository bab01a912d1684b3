/*
 * TCP connections and segments, as dtrace_tcp(4) describes them.
 */
/* States in netinet/tcp_fsm.h, and their names on Solaris */
inline int TCPS_CLOSED = 0;
inline int TCPS_LISTEN = 1;
inline int TCPS_SYN_SENT = 2;
inline int TCPS_SYN_RECEIVED = 3;
inline int TCPS_ESTABLISHED = 4;
inline int TCPS_CLOSE_WAIT = 5;
inline int TCPS_FIN_WAIT_1 = 6;
inline int TCPS_CLOSING = 7;
inline int TCPS_LAST_ACK = 8;
inline int TCPS_FIN_WAIT_2 = 9;
inline int TCPS_TIME_WAIT = 10;
inline int TCP_STATE_CLOSED = TCPS_CLOSED;
inline int TCP_STATE_LISTEN = TCPS_LISTEN;
inline int TCP_STATE_SYN_SENT = TCPS_SYN_SENT;
inline int TCP_STATE_SYN_RECEIVED = TCPS_SYN_RECEIVED;
inline int TCP_STATE_ESTABLISHED = TCPS_ESTABLISHED;
inline int TCP_STATE_CLOSE_WAIT = TCPS_CLOSE_WAIT;
inline int TCP_STATE_FIN_WAIT_1 = TCPS_FIN_WAIT_1;
inline int TCP_STATE_CLOSING = TCPS_CLOSING;
inline int TCP_STATE_LAST_ACK = TCPS_LAST_ACK;
inline int TCP_STATE_FIN_WAIT_2 = TCPS_FIN_WAIT_2;
inline int TCP_STATE_TIME_WAIT = TCPS_TIME_WAIT;

/* Header flags in netinet/tcp.h */
inline uint16_t TH_FIN = 1;
inline uint16_t TH_SYN = 2;
inline uint16_t TH_RST = 4;
inline uint16_t TH_PUSH = 8;
inline uint16_t TH_ACK = 0x10;
inline uint16_t TH_URG = 0x20;
inline uint16_t TH_ECE = 0x40;
inline uint16_t TH_CWR = 0x80;
inline uint16_t TH_AE = 0x100;

inline string tcp_state_string[int32_t state] =
    state == TCPS_CLOSED ? "state-closed" :
    state == TCPS_LISTEN ? "state-listen" :
    state == TCPS_SYN_SENT ? "state-syn-sent" :
    state == TCPS_SYN_RECEIVED ? "state-syn-received" :
    state == TCPS_ESTABLISHED ? "state-established" :
    state == TCPS_CLOSE_WAIT ? "state-close-wait" :
    state == TCPS_FIN_WAIT_1 ? "state-fin-wait-1" :
    state == TCPS_CLOSING ? "state-closing" :
    state == TCPS_LAST_ACK ? "state-last-ack" :
    state == TCPS_FIN_WAIT_2 ? "state-fin-wait-2" :
    state == TCPS_TIME_WAIT ? "state-time-wait" :
    "<unknown>";

translator csinfo_t < struct tcpcb *T > {
	cs_addr = 0;
	cs_cid = T == NULL ? 0 : (uint64_t)&T->t_inpcb;
	cs_pid = 0;
	cs_zoneid = 0;
};

typedef struct tcpsinfo {
	uintptr_t tcps_addr;
	int tcps_local;
	int tcps_active;
	uint16_t tcps_lport;
	uint16_t tcps_rport;
	string tcps_laddr;
	string tcps_raddr;
	int32_t tcps_state;
	uint32_t tcps_iss;
	uint32_t tcps_irs;
	uint32_t tcps_suna;
	uint32_t tcps_smax;
	uint32_t tcps_snxt;
	uint32_t tcps_rack;
	uint32_t tcps_rnxt;
	u_long tcps_swnd;
	int32_t tcps_snd_ws;
	uint32_t tcps_swl1;
	uint32_t tcps_swl2;
	uint32_t tcps_radv;
	u_long tcps_rwnd;
	uint32_t tcps_rup;
	int32_t tcps_rcv_ws;
	u_long tcps_cwnd;
	u_long tcps_cwnd_ssthresh;
	uint32_t tcps_srecover;
	uint32_t tcps_sack_fack;
	uint32_t tcps_sack_snxt;
	uint32_t tcps_rto;
	uint32_t tcps_mss;
	int tcps_retransmit;
	int tcps_srtt;
	int tcps_debug;
	int32_t tcps_cookie;
	int32_t tcps_dupacks;
	uint32_t tcps_rtttime;
	uint32_t tcps_rtseq;
	uint32_t tcps_ts_recent;
} tcpsinfo_t;

translator tcpsinfo_t < struct tcpcb *T > {
	tcps_addr = (uintptr_t)T;
	tcps_local = -1;
	tcps_active = -1;
	tcps_lport = T == NULL ? 0 : ntohs(T->t_inpcb.inp_inc.inc_ie.ie_lport);
	tcps_rport = T == NULL ? 0 : ntohs(T->t_inpcb.inp_inc.inc_ie.ie_fport);
	tcps_laddr = T == NULL ? "<unknown>" : T->t_inpcb.inp_vflag == INP_IPV4 ?
	    inet_ntoa(&T->t_inpcb.inp_inc.inc_ie.ie_dependladdr.id46_addr.ia46_addr4.s_addr) :
	    inet_ntoa6(&T->t_inpcb.inp_inc.inc_ie.ie_dependladdr.id6_addr);
	tcps_raddr = T == NULL ? "<unknown>" : T->t_inpcb.inp_vflag == INP_IPV4 ?
	    inet_ntoa(&T->t_inpcb.inp_inc.inc_ie.ie_dependfaddr.id46_addr.ia46_addr4.s_addr) :
	    inet_ntoa6(&T->t_inpcb.inp_inc.inc_ie.ie_dependfaddr.id6_addr);
	tcps_state = T == NULL ? -1 : T->t_state;
	tcps_iss = T == NULL ? 0 : T->iss;
	tcps_irs = T == NULL ? 0 : T->irs;
	tcps_suna = T == NULL ? 0 : T->snd_una;
	tcps_smax = T == NULL ? 0 : T->snd_max;
	tcps_snxt = T == NULL ? 0 : T->snd_nxt;
	tcps_rack = T == NULL ? 0 : T->last_ack_sent;
	tcps_rnxt = T == NULL ? 0 : T->rcv_nxt;
	tcps_swnd = T == NULL ? -1 : T->snd_wnd;
	tcps_snd_ws = T == NULL ? -1 : T->snd_scale;
	tcps_swl1 = T == NULL ? -1 : T->snd_wl1;
	tcps_swl2 = T == NULL ? -1 : T->snd_wl2;
	tcps_radv = T == NULL ? -1 : T->rcv_adv;
	tcps_rwnd = T == NULL ? -1 : T->rcv_wnd;
	tcps_rup = T == NULL ? -1 : T->rcv_up;
	tcps_rcv_ws = T == NULL ? -1 : T->rcv_scale;
	tcps_cwnd = T == NULL ? -1 : T->snd_cwnd;
	tcps_cwnd_ssthresh = T == NULL ? -1 : T->snd_ssthresh;
	tcps_srecover = T == NULL ? -1 : T->snd_recover;
	tcps_sack_fack = T == NULL ? 0 : T->snd_fack;
	tcps_sack_snxt = T == NULL ? 0 : T->snd_recover;
	tcps_rto = T == NULL ? -1 : T->t_rxtcur * 1000 / `hz;
	tcps_mss = T == NULL ? -1 : T->t_maxseg;
	tcps_retransmit = T == NULL ? -1 : T->t_rxtshift > 0;
	tcps_srtt = T == NULL ? -1 : T->t_srtt;
	tcps_debug = T == NULL ? 0 : T->t_inpcb.inp_socket->so_options & 1;
	tcps_cookie = T == NULL ? -1 : T->t_inpcb.inp_socket->so_user_cookie;
	tcps_dupacks = T == NULL ? -1 : T->t_dupacks;
	tcps_rtttime = T == NULL ? -1 : T->t_rtttime;
	tcps_rtseq = T == NULL ? -1 : T->t_rtseq;
	tcps_ts_recent = T == NULL ? -1 : T->ts_recent;
};

typedef struct tcpinfo {
	uint16_t tcp_sport;
	uint16_t tcp_dport;
	uint32_t tcp_seq;
	uint32_t tcp_ack;
	uint8_t tcp_offset;
	uint16_t tcp_flags;
	uint16_t tcp_window;
	uint16_t tcp_checksum;
	uint16_t tcp_urgent;
	struct tcphdr *tcp_hdr;
} tcpinfo_t;

translator tcpinfo_t < struct tcphdr *H > {
	tcp_sport = H == NULL ? 0 : ntohs(H->th_sport);
	tcp_dport = H == NULL ? 0 : ntohs(H->th_dport);
	tcp_seq = H == NULL ? -1 : ntohl(H->th_seq);
	tcp_ack = H == NULL ? -1 : ntohl(H->th_ack);
	tcp_offset = H == NULL ? -1 : 4 * H->th_off;
	tcp_flags = H == NULL ? 0 : H->th_x2 << 8 | H->th_flags;
	tcp_window = H == NULL ? 0 : ntohs(H->th_win);
	tcp_checksum = H == NULL ? 0 : ntohs(H->th_sum);
	tcp_urgent = H == NULL ? 0 : ntohs(H->th_urp);
	tcp_hdr = H;
};

/* A TCP header whose numbers the kernel has already converted to host byte order. */
typedef struct tcpinfoh {
	uint16_t tcp_sport;
	uint16_t tcp_dport;
	uint32_t tcp_seq;
	uint32_t tcp_ack;
	uint8_t tcp_offset;
	uint16_t tcp_flags;
	uint16_t tcp_window;
	uint16_t tcp_checksum;
	uint16_t tcp_urgent;
	struct tcphdr *tcp_hdr;
} tcpinfoh_t;

translator tcpinfoh_t < struct tcphdr *H > {
	tcp_sport = H == NULL ? 0 : ntohs(H->th_sport);
	tcp_dport = H == NULL ? 0 : ntohs(H->th_dport);
	tcp_seq = H == NULL ? -1 : H->th_seq;
	tcp_ack = H == NULL ? -1 : H->th_ack;
	tcp_offset = H == NULL ? -1 : 4 * H->th_off;
	tcp_flags = H == NULL ? 0 : H->th_x2 << 8 | H->th_flags;
	tcp_window = H == NULL ? 0 : H->th_win;
	tcp_checksum = H == NULL ? 0 : ntohs(H->th_sum);
	tcp_urgent = H == NULL ? 0 : H->th_urp;
	tcp_hdr = H;
};

typedef struct tcplsinfo {
	int32_t tcps_state;
} tcplsinfo_t;

translator tcplsinfo_t < int S > {
	tcps_state = S;
};
