// Writes what another part than the one that is tested owns.
#pragma once

#include "coordinator/job/owned.h"

namespace lockstep::coordinator {

struct OwnedInTests {
  template <class T, class Owner>
  static T& Write(Owned<T, Owner>& field) {
    return field.Write();
  }
};

template <class T, class Owner>
T& Edit(Owned<T, Owner>& field) {
  return OwnedInTests::Write(field);
}

}  // namespace lockstep::coordinator
