# For gdb-multiarch on what `kinst replay FILE --gdb 1234` or `kinst boot --gdb 1234` serves:
#
#     gdb-multiarch -ix examples/editors/kinst.gdb kernel -ex 'attach-kinst 1234'
#
# It can be sourced from ~/.gdbinit, too.

# A gdb without FreeBSD's ABI would refuse the kernel's file on amd64.
set osabi none
set pagination off
set print pretty on

define attach-kinst
    target remote 127.0.0.1:$arg0
end
document attach-kinst
attach-kinst PORT: drive what kinst serves there.
end

define go-to
    monitor go $arg0
    maintenance flush register-cache
    frame
end
document go-to
go-to POSITION: send a recording there: a count of instructions, 50%, malloc#3, panic.
end

define where-now
    monitor position
    x/i $pc
end
document where-now
Where a recording stands, and what is executed next.
end

define back
    reverse-stepi
    x/i $pc
end
document back
An instruction back.
end
