// Package lines is what the programs in Go have in common: JSON lines, and a standard input that
// ends. See tests/clients/programs.py for what the programs are to do.
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

// Burst is how many records are under way at once; then all of them are waited for.
const Burst = 20

// Aborted is how many transactions there are to one that is aborted.
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

// InputEnded is cancelled at the end of standard input: whoever started this program wants it to
// stop.
func InputEnded() context.Context {
	ended, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	return ended
}

// Owned are the partitions of one member, told whenever they change.
type Owned struct {
	mutex      sync.Mutex
	partitions map[int32]bool
}

// Change adds and takes away.
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

// Settled is what is found as soon as it is wanted, or what it is after a while. A change is done
// when it is answered; brokers that are asked hear of it a moment later.
func Settled[T any](ask func() T, wanted T) T {
	found := ask()
	for tries := 0; tries < 200 && !reflect.DeepEqual(found, wanted); tries++ {
		time.Sleep(100 * time.Millisecond)
		found = ask()
	}
	return found
}

// Number is an argument, or the value of a record.
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
