// no_acquire is run with a poller that reads what comes with a completion in no order with it.
#define SIMT_NO_ACQUIRE
#include "run.cc"
