// Every installed program has standard streams, and checks at its end that its output was written
// (standard_streams.cpp). Included by programs that end with another code than 1 where it was not.
#pragma once

/// The exit code of a program whose output is lost. 1 unless set.
extern int standard_output_exit_code;
