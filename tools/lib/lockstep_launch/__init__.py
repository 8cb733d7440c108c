"""The launcher of tools/launch and `lockstep run`.

options: the command line. job: from the coordinator's start to the exit status; hosts_job: the same on several hosts. Both stand on
loop (output, signals, time-outs), processes, slots (restarts), ending, commands, programs, processors, hosts and screen.
"""
