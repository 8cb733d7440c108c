// A RapidCheck property as a statement of a GoogleTest test.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace lockstep {

// The same cases in each run, so that a failure is the change's own. RC_PARAMS=seed=N tries others.
inline const bool kSameCases = setenv("RC_PARAMS", "seed=1", /*overwrite=*/0) == 0;

// rc::check prints that a property does not hold, and returns it; a test that does not look at that
// cannot fail. Tests call this one instead. It fails, too, when too many cases were discarded.
template <class Property>
void ExpectHolds(const std::string& what, Property&& property) {
  EXPECT_TRUE(rc::check(what, std::forward<Property>(property))) << what << ": see above";
}

}  // namespace lockstep
