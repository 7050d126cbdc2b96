// no_release is run with a device that orders nothing before its doorbells and record rings.
#define SIMT_NO_RELEASE
#include "run.cc"
