"""The launcher's waits, in seconds."""

CONNECT_S = 60.0  # until every host is ready; ssh itself gives up sooner
HOSTS_END_S = 5.0  # for ssh to end, once there is no more output
HOST_KILLS_S = 10.0  # for a host to report that a killed process has ended; one with much memory takes long
ADDRESS_POLL_S = 0.05  # a file cannot be waited for without inotify
UNSAID_S = 2.0  # how long the coordinator may take to write down the job's settings from the first worker
ONE_SIGNAL_S = 0.5  # in which two signals count as one
SETTLE_S = 0.02  # an unfinished line is progress if nothing follows for so long; a log line may come in pieces

# Until workers end by themselves:
WORKERS_END_S = 15.0  # once the coordinator has ended, or has evicted them
SAVING_S = 300.0  # while one of them saves its parameters, as no other coordinator comes
GIVEN_UP_S = 2.0  # in a failed job
TERM_S = 5.0  # after SIGTERM, before SIGKILL
AFTER_S = 5.0  # after a job that has completed, before a line says that the launcher waits for their programs

# Until a worker is started again that found no place in the job:
TRY_AGAIN_S = 1.0
NO_PLACE_S = 600.0  # in all, before it counts as any other end
