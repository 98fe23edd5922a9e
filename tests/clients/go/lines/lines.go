// Package lines has helpers of the programs in Go: JSON lines and the end of standard input.
// See tests/clients/programs.py for the verbs of the programs.
package lines

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime/debug"
	"sort"
	"strconv"
	"sync"
	"time"
)

// Burst is the number of records in flight at once. The program waits for all before the next burst.
const Burst = 20

// One of Aborted transactions is aborted.
const Aborted = 3

const (
	SessionTimeoutMs = 10_000
	HeartbeatMs      = 500
)

var mutex sync.Mutex

// Tell prints one JSON object with one key.
func Tell(name string, value any) {
	text, err := json.Marshal(map[string]any{name: value})
	Check(err)
	mutex.Lock()
	defer mutex.Unlock()
	fmt.Println(string(text))
}

// Check ends the program if there is an error.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// InputEnded returns a context that is cancelled at the end of standard input, which asks the
// program to stop.
func InputEnded() context.Context {
	ended, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	return ended
}

// Owned has the partitions of one member and prints them at each change.
type Owned struct {
	mutex      sync.Mutex
	partitions map[int32]bool
}

// Change adds the partitions more, removes fewer, and prints the result.
func (o *Owned) Change(more, fewer []int32) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.partitions == nil {
		o.partitions = map[int32]bool{}
	}
	for _, partition := range more {
		o.partitions[partition] = true
	}
	for _, partition := range fewer {
		delete(o.partitions, partition)
	}
	owned := []int{}
	for partition := range o.partitions {
		owned = append(owned, int(partition))
	}
	sort.Ints(owned)
	Tell("owns", owned)
}

// Settled polls ask until it returns wanted; after 20 s it returns the last result. A change is
// complete when it is answered, but other brokers apply it a moment later.
func Settled[T any](ask func() T, wanted T) T {
	found := ask()
	for tries := 0; tries < 200 && !reflect.DeepEqual(found, wanted); tries++ {
		time.Sleep(100 * time.Millisecond)
		found = ask()
	}
	return found
}

// Number parses an argument or the value of a record.
func Number(text string) int {
	number, err := strconv.Atoi(text)
	Check(err)
	return number
}

// TellVersion prints the version of a module that this program was built with.
func TellVersion(module string) {
	info, _ := debug.ReadBuildInfo()
	for _, each := range info.Deps {
		if each.Path == module {
			Tell("version", each.Version[1:])
		}
	}
}
