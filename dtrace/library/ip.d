/*
 * IP packets, as dtrace_ip(4) describes them.
 */
inline int INP_IPV4 = 1;	/* netinet/in_pcb.h */

typedef uint32_t ipaddr_t;
typedef struct in6_addr in6_addr_t;

typedef struct pktinfo {
	uintptr_t pkt_addr;
} pktinfo_t;

translator pktinfo_t < void *P > {
	pkt_addr = 0;
};

typedef struct csinfo {
	uintptr_t cs_addr;
	uint64_t cs_cid;
	pid_t cs_pid;
	int cs_zoneid;
} csinfo_t;

translator csinfo_t < void *P > {
	cs_addr = 0;
	cs_cid = (uint64_t)P;
	cs_pid = 0;
	cs_zoneid = 0;
};

translator csinfo_t < struct inpcb *I > {
	cs_addr = 0;
	cs_cid = (uint64_t)I;
	cs_pid = 0;
	cs_zoneid = 0;
};

typedef struct ipinfo {
	uint8_t ip_ver;
	uint32_t ip_plength;
	string ip_saddr;
	string ip_daddr;
} ipinfo_t;

translator ipinfo_t < uint8_t *P > {
	ip_ver = P == NULL ? 0 : ((struct ip *)P)->ip_v;
	ip_plength = P == NULL ? 0 : ((struct ip *)P)->ip_v == 4 ?
	    ntohs(((struct ip *)P)->ip_len) - 4 * ((struct ip *)P)->ip_hl :
	    ntohs(((struct ip6_hdr *)P)->ip6_ctlun.ip6_un1.ip6_un1_plen);
	ip_saddr = P == NULL ? "<unknown>" : ((struct ip *)P)->ip_v == 4 ?
	    inet_ntoa(&((struct ip *)P)->ip_src.s_addr) : inet_ntoa6(&((struct ip6_hdr *)P)->ip6_src);
	ip_daddr = P == NULL ? "<unknown>" : ((struct ip *)P)->ip_v == 4 ?
	    inet_ntoa(&((struct ip *)P)->ip_dst.s_addr) : inet_ntoa6(&((struct ip6_hdr *)P)->ip6_dst);
};

translator ipinfo_t < struct mbuf *M > {
	ip_ver = M == NULL ? 0 : ((struct ip *)M->m_data)->ip_v;
	ip_plength = M == NULL ? 0 : ((struct ip *)M->m_data)->ip_v == 4 ?
	    ntohs(((struct ip *)M->m_data)->ip_len) - 4 * ((struct ip *)M->m_data)->ip_hl :
	    ntohs(((struct ip6_hdr *)M->m_data)->ip6_ctlun.ip6_un1.ip6_un1_plen);
	ip_saddr = M == NULL ? "<unknown>" : ((struct ip *)M->m_data)->ip_v == 4 ?
	    inet_ntoa(&((struct ip *)M->m_data)->ip_src.s_addr) : inet_ntoa6(&((struct ip6_hdr *)M->m_data)->ip6_src);
	ip_daddr = M == NULL ? "<unknown>" : ((struct ip *)M->m_data)->ip_v == 4 ?
	    inet_ntoa(&((struct ip *)M->m_data)->ip_dst.s_addr) : inet_ntoa6(&((struct ip6_hdr *)M->m_data)->ip6_dst);
};

typedef struct ifinfo {
	string if_name;
	int8_t if_local;
	uintptr_t if_addr;
} ifinfo_t;

inline int IFF_LOOPBACK = 8;

translator ifinfo_t < struct ifnet *N > {
	if_name = N == NULL ? "<unknown>" : stringof(N->if_xname);
	if_local = N == NULL ? 0 : (N->if_flags & IFF_LOOPBACK) != 0;
	if_addr = (uintptr_t)N;
};

/* The IPv4 header with the member names of Solaris. */
typedef struct ipha {
	uint8_t ipha_version_and_hdr_length;
	uint8_t ipha_type_of_service;
	uint16_t ipha_length;
	uint16_t ipha_ident;
	uint16_t ipha_fragment_offset_and_flags;
	uint8_t ipha_ttl;
	uint8_t ipha_protocol;
	uint16_t ipha_hdr_checksum;
	ipaddr_t ipha_src;
	ipaddr_t ipha_dst;
} ipha_t;

/* Names of the IPPROTO_ constants in netinet/in.h */
inline string protocols[int number] =
    number == 0 ? "IP" :
    number == 1 ? "ICMP" :
    number == 2 ? "IGMP" :
    number == 3 ? "GGP" :
    number == 4 ? "IPV4" :
    number == 6 ? "TCP" :
    number == 8 ? "EGP" :
    number == 9 ? "IGP" :
    number == 12 ? "PUP" :
    number == 17 ? "UDP" :
    number == 22 ? "IDP" :
    number == 29 ? "TP" :
    number == 33 ? "DCCP" :
    number == 41 ? "IPV6" :
    number == 43 ? "ROUTING" :
    number == 44 ? "FRAGMENT" :
    number == 46 ? "RSVP" :
    number == 47 ? "GRE" :
    number == 50 ? "ESP" :
    number == 51 ? "AH" :
    number == 55 ? "MOBILE" :
    number == 58 ? "ICMPV6" :
    number == 59 ? "NONE" :
    number == 60 ? "DSTOPTS" :
    number == 80 ? "EON" :
    number == 97 ? "ETHERIP" :
    number == 98 ? "ENCAP" :
    number == 103 ? "PIM" :
    number == 108 ? "IPCOMP" :
    number == 112 ? "CARP" :
    number == 132 ? "SCTP" :
    number == 136 ? "UDPLITE" :
    number == 240 ? "PFSYNC" :
    number == 255 ? "RAW" :
    "UNKNOWN";

typedef struct ipv4info {
	uint8_t ipv4_ver;
	uint8_t ipv4_ihl;
	uint8_t ipv4_tos;
	uint16_t ipv4_length;
	uint16_t ipv4_ident;
	uint8_t ipv4_flags;
	uint16_t ipv4_offset;
	uint8_t ipv4_ttl;
	uint8_t ipv4_protocol;
	string ipv4_protostr;
	uint16_t ipv4_checksum;
	ipaddr_t ipv4_src;
	ipaddr_t ipv4_dst;
	string ipv4_saddr;
	string ipv4_daddr;
	ipha_t *ipv4_hdr;
} ipv4info_t;

translator ipv4info_t < struct ip *P > {
	ipv4_ver = P == NULL ? 0 : P->ip_v;
	ipv4_ihl = P == NULL ? 0 : P->ip_hl;
	ipv4_tos = P == NULL ? 0 : P->ip_tos;
	ipv4_length = P == NULL ? 0 : ntohs(P->ip_len);
	ipv4_ident = P == NULL ? 0 : ntohs(P->ip_id);
	ipv4_flags = P == NULL ? 0 : (ntohs(P->ip_off) & 0xe000) >> 8;
	ipv4_offset = P == NULL ? 0 : ntohs(P->ip_off) & 0x1fff;
	ipv4_ttl = P == NULL ? 0 : P->ip_ttl;
	ipv4_protocol = P == NULL ? 0 : P->ip_p;
	ipv4_protostr = P == NULL ? "<null>" : protocols[P->ip_p];
	ipv4_checksum = P == NULL ? 0 : ntohs(P->ip_sum);
	ipv4_src = P == NULL ? 0 : ntohl(P->ip_src.s_addr);
	ipv4_dst = P == NULL ? 0 : ntohl(P->ip_dst.s_addr);
	ipv4_saddr = P == NULL ? "<unknown>" : inet_ntoa(&P->ip_src.s_addr);
	ipv4_daddr = P == NULL ? "<unknown>" : inet_ntoa(&P->ip_dst.s_addr);
	ipv4_hdr = (ipha_t *)P;
};

typedef struct ipv6info {
	uint8_t ipv6_ver;
	uint8_t ipv6_tclass;
	uint32_t ipv6_flow;
	uint16_t ipv6_plen;
	uint8_t ipv6_nexthdr;
	string ipv6_nextstr;
	uint8_t ipv6_hlim;
	in6_addr_t *ipv6_src;
	in6_addr_t *ipv6_dst;
	string ipv6_saddr;
	string ipv6_daddr;
	struct ip6_hdr *ipv6_hdr;
} ipv6info_t;

translator ipv6info_t < struct ip6_hdr *P > {
	ipv6_ver = P == NULL ? 0 : ntohl(P->ip6_ctlun.ip6_un1.ip6_un1_flow) >> 28;
	ipv6_tclass = P == NULL ? 0 : ntohl(P->ip6_ctlun.ip6_un1.ip6_un1_flow) >> 20 & 0xff;
	ipv6_flow = P == NULL ? 0 : ntohl(P->ip6_ctlun.ip6_un1.ip6_un1_flow) & 0xfffff;
	ipv6_plen = P == NULL ? 0 : ntohs(P->ip6_ctlun.ip6_un1.ip6_un1_plen);
	ipv6_nexthdr = P == NULL ? 0 : P->ip6_ctlun.ip6_un1.ip6_un1_nxt;
	ipv6_nextstr = P == NULL ? "<null>" : protocols[P->ip6_ctlun.ip6_un1.ip6_un1_nxt];
	ipv6_hlim = P == NULL ? 0 : P->ip6_ctlun.ip6_un1.ip6_un1_hlim;
	ipv6_src = &P->ip6_src;
	ipv6_dst = &P->ip6_dst;
	ipv6_saddr = P == NULL ? "<unknown>" : inet_ntoa6(&P->ip6_src);
	ipv6_daddr = P == NULL ? "<unknown>" : inet_ntoa6(&P->ip6_dst);
	ipv6_hdr = P;
};
