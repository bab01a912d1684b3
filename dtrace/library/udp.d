/*
 * UDP datagrams, as dtrace_udp(4) and dtrace_udplite(4) describe them.
 */
typedef struct udpsinfo {
	uintptr_t udps_addr;
	uint16_t udps_lport;
	uint16_t udps_rport;
	string udps_laddr;
	string udps_raddr;
} udpsinfo_t;

translator udpsinfo_t < struct inpcb *I > {
	udps_addr = (uintptr_t)I;
	udps_lport = I == NULL ? 0 : ntohs(I->inp_inc.inc_ie.ie_lport);
	udps_rport = I == NULL ? 0 : ntohs(I->inp_inc.inc_ie.ie_fport);
	udps_laddr = I == NULL ? "<unknown>" : I->inp_vflag == INP_IPV4 ?
	    inet_ntoa(&I->inp_inc.inc_ie.ie_dependladdr.id46_addr.ia46_addr4.s_addr) :
	    inet_ntoa6(&I->inp_inc.inc_ie.ie_dependladdr.id6_addr);
	udps_raddr = I == NULL ? "<unknown>" : I->inp_vflag == INP_IPV4 ?
	    inet_ntoa(&I->inp_inc.inc_ie.ie_dependfaddr.id46_addr.ia46_addr4.s_addr) :
	    inet_ntoa6(&I->inp_inc.inc_ie.ie_dependfaddr.id6_addr);
};

typedef struct udpinfo {
	uint16_t udp_sport;
	uint16_t udp_dport;
	uint16_t udp_length;
	uint16_t udp_checksum;
	struct udphdr *udp_hdr;
} udpinfo_t;

translator udpinfo_t < struct udphdr *H > {
	udp_sport = H == NULL ? 0 : ntohs(H->uh_sport);
	udp_dport = H == NULL ? 0 : ntohs(H->uh_dport);
	udp_length = H == NULL ? 0 : ntohs(H->uh_ulen);
	udp_checksum = H == NULL ? 0 : ntohs(H->uh_sum);
	udp_hdr = H;
};

typedef struct udplitesinfo {
	uintptr_t udplites_addr;
	uint16_t udplites_lport;
	uint16_t udplites_rport;
	string udplites_laddr;
	string udplites_raddr;
} udplitesinfo_t;

translator udplitesinfo_t < struct inpcb *I > {
	udplites_addr = (uintptr_t)I;
	udplites_lport = I == NULL ? 0 : ntohs(I->inp_inc.inc_ie.ie_lport);
	udplites_rport = I == NULL ? 0 : ntohs(I->inp_inc.inc_ie.ie_fport);
	udplites_laddr = I == NULL ? "<unknown>" : I->inp_vflag == INP_IPV4 ?
	    inet_ntoa(&I->inp_inc.inc_ie.ie_dependladdr.id46_addr.ia46_addr4.s_addr) :
	    inet_ntoa6(&I->inp_inc.inc_ie.ie_dependladdr.id6_addr);
	udplites_raddr = I == NULL ? "<unknown>" : I->inp_vflag == INP_IPV4 ?
	    inet_ntoa(&I->inp_inc.inc_ie.ie_dependfaddr.id46_addr.ia46_addr4.s_addr) :
	    inet_ntoa6(&I->inp_inc.inc_ie.ie_dependfaddr.id6_addr);
};

typedef struct udpliteinfo {
	uint16_t udplite_sport;
	uint16_t udplite_dport;
	uint16_t udplite_coverage;
	uint16_t udplite_checksum;
	struct udphdr *udplite_hdr;
} udpliteinfo_t;

translator udpliteinfo_t < struct udphdr *H > {
	udplite_sport = H == NULL ? 0 : ntohs(H->uh_sport);
	udplite_dport = H == NULL ? 0 : ntohs(H->uh_dport);
	udplite_coverage = H == NULL ? 0 : ntohs(H->uh_ulen);
	udplite_checksum = H == NULL ? 0 : ntohs(H->uh_sum);
	udplite_hdr = H;
};
