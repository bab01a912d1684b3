# Commands for gdb-multiarch connected to `kinst replay FILE --gdb 1234` or `kinst boot --gdb 1234`:
#
#     gdb-multiarch -ix examples/editors/kinst.gdb kernel -ex 'attach-kinst 1234'
#
# The file can also be sourced from ~/.gdbinit.

# With another OS ABI, gdb refuses the kernel file on amd64.
set osabi none
set pagination off
set print pretty on

define attach-kinst
    target remote 127.0.0.1:$arg0
end
document attach-kinst
attach-kinst PORT: connect to the kinst gdb server on a local port.
end

define go-to
    monitor go $arg0
    maintenance flush register-cache
    frame
end
document go-to
go-to POSITION: seek in a recording: an instruction count, 50%, malloc#3, panic.
end

define where-now
    monitor position
    x/i $pc
end
document where-now
Print the position in the recording and the next instruction.
end

define back
    reverse-stepi
    x/i $pc
end
document back
Step back one instruction.
end
