#include "policies/full.h"
#include "policies/plugin.h"
#include "policies/work_none.h"

LOCKSTEP_POLICY_PLUGIN(section, workers) {
  lockstep::policies::Policy policy;
  policy.closing = lockstep::policies::MakeFull();
  policy.work = lockstep::policies::MakeWorkNone();
  policy.local = true;
  return policy;
}
