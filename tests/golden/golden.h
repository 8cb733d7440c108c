// Holds what a test has told against its file, tests/golden/NAME.txt. `--rewrite` on the program's
// command line writes the files anew; read the difference before it is committed.
#pragma once

#include <string>

namespace lockstep {

// Each name belongs to one test. A program that runs all of its tests fails when a file of its
// folder is left over that none of them has told.
void CompareWithFile(const std::string& text, const std::string& name);

}  // namespace lockstep
