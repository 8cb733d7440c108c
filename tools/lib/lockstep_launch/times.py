"""How long the launcher waits for what, in seconds."""

CONNECT_S = 60.0  # until every host is ready; ssh itself gives up sooner
HOSTS_END_S = 5.0  # for ssh to end, once there is nothing left to be heard
HOST_KILLS_S = 10.0  # for a host to say that what was killed has ended; a process with much memory takes its time
ADDRESS_POLL_S = 0.05  # a file cannot be waited for without inotify
UNSAID_S = 2.0  # how long the coordinator may take to write down what the first worker has said of the job
ONE_SIGNAL_S = 0.5  # in which two signals are one
SETTLE_S = 0.02  # an unfinished line is progress if nothing follows for so long; a log line may come in pieces

# Until workers end by themselves:
WORKERS_END_S = 15.0  # once the coordinator has ended, or has put them out
GIVEN_UP_S = 2.0  # in a job that came to nothing
TERM_S = 5.0  # after SIGTERM, before SIGKILL
AFTER_S = 5.0  # after a job that has completed, before a line says that the launcher waits for their programs

# Until a worker is started again that found no place in the job:
TRY_AGAIN_S = 1.0
NO_PLACE_S = 600.0  # in all, before that counts as any other end
