"""Configuration files that a fetched base system gets in addition to its distribution sets.

An installer would write them. The distribution set of the base system contains none of them.
"""

FSTAB = """\
# Device\tMountpoint\tFStype\tOptions\tDump\tPass#
/dev/vtbd0\t/\tufs\trw\t1\t1
"""

# rc.conf(5): leave out what needs hardware or a mail system, and configure the network device of
# --net, if there is one.
RC_CONF = """\
hostname="kinst"
sendmail_enable="NONE"
dumpdev="NO"
savecore_enable="NO"
background_fsck="NO"
update_motd="NO"
virecover_enable="NO"
newsyslog_enable="NO"
devmatch_enable="NO"
ifconfig_vtnet0="SYNCDHCP"
"""

SETTINGS = {"etc/fstab": FSTAB, "etc/rc.conf": RC_CONF}
