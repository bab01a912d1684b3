/* Workload for bench/actions, which calls work() in a loop or sends datagrams to itself. */
#include "system.h"
__attribute__((noinline)) static int work(int n)
{
	__asm__ volatile("" : "+r"(n));
	return n + 1;
}
int main(int argc, char **argv)
{
	struct sockaddr_in local = { .len = 16, .family = AF_INET, .port = 0x901f,
	    .address = 0x0100007f };
	struct interface_address loop = { .name = "lo0", .address = local };
	int in, out, sum = 0;
	char data[8];

	if (argv[1][0] == 'w') {
		for (int i = 0; i < 300000; i++)
			sum = work(sum);
		return sum & 1;
	}
	in = (int)CALL3(SYS_socket, AF_INET, SOCK_DGRAM, 0);
	loop.address.port = 0;
	loop.mask = loop.address;
	loop.mask.address = 0x000000ff;
	CALL3(SYS_ioctl, in, SIOCAIFADDR, &loop);
	out = (int)CALL3(SYS_socket, AF_INET, SOCK_DGRAM, 0);
	if (CALL3(SYS_bind, in, &local, sizeof(local)) != 0 ||
	    CALL3(SYS_connect, out, &local, sizeof(local)) != 0)
		return 1;
	for (int i = 0; i < 5000; i++)
		if (CALL3(SYS_write, out, "datagram", 8) != 8 || CALL3(SYS_read, in, data, 8) != 8)
			return 1;
	return 0;
}
